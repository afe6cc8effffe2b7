//! The `remora` binary: arguments in, one command run, an exit code out.

mod cli;
mod cluster;
mod commands;
mod input;
mod out;
mod progress;
mod settings;
mod spool;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = cli::arguments(std::env::args_os());
    let early = commands::istio_iptables::early(&arguments)
        .or_else(|| commands::proxy::early(&arguments))
        .or_else(|| commands::wait::early(&arguments))
        .or_else(|| commands::demo::early(&arguments));
    if let Some(code) = early {
        return code;
    }
    match cli::parse(arguments) {
        Ok(command) => finish(commands::run(command)),
        Err(error) => {
            let code = if error.use_stderr() { 2 } else { 0 };
            // Nobody left to read the help text: nothing more to say.
            let _ = error.print();
            ExitCode::from(code)
        }
    }
}

/// A reader that went away (`remora … | head`) got what it wanted: success.
fn finish(result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) if out::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            out::error(&error);
            ExitCode::FAILURE
        }
    }
}
