//! A node's proxy in a pod, as ambient has it: it listens before the first container, and nobody is exempt.

use remora_capture::install;
use remora_engine::world::Refusal;
use remora_net::Namespace;
use remora_rules::options::{Environment, Settings, parse_argv};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;

/// A user and group that no container has.
const NOBODY: &str = "65533";

/// Listens in the pod and leads its traffic there; connections from the node are left alone.
pub(crate) fn set_up(network: &Namespace) -> Result<(), Refusal> {
    let words = [
        "-p", "15001", "-z", "15006", "-u", NOBODY, "-g", NOBODY, "-m", "REDIRECT", "-i", "*", "-b", "",
    ];
    let settings = Settings::read(&parse_argv(&words)?, &Environment::new())?;
    let listener = network.run(|| {
        let listener = TcpListener::bind(("0.0.0.0", 15001))?;
        let prepared = install::prepare(&settings).map_err(std::io::Error::other)?;
        install::install(&settings, &prepared.plan).map_err(std::io::Error::other)?;
        Ok::<_, std::io::Error>(listener)
    })??;
    // It ends with the test.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = stream.write_all(b"proxied\n");
                let mut rest = Vec::new();
                let _ = stream.read_to_end(&mut rest);
            });
        }
    });
    Ok(())
}
