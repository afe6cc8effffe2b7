//! The flags of `istio-iptables`, shared with every command that needs to know what would be captured.
//!
//! They are made from the table in `remora_rules::options`. All values are texts: what they mean and which environment
//! variables stand in for them is decided there, so that a pod's manifest and a command line are read alike.

use crate::settings;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use remora_rules::options::{Environment, Given, Kind, Name, OPTIONS, Origin, Spec};

/// The flags that were given, in the order of the table.
#[derive(Debug, Clone, Default)]
pub(crate) struct CaptureFlags {
    given: Vec<Given>,
}

impl CaptureFlags {
    pub(crate) fn given(&self) -> Vec<Given> {
        self.given.clone()
    }

    /// The value of one flag.
    pub(crate) fn value(&self, option: Name) -> Option<&str> {
        let found = self.given.iter().find(|given| given.option == option);
        found.map(|given| given.value.as_str())
    }
}

impl Args for CaptureFlags {
    fn augment_args(command: Command) -> Command {
        let flags = OPTIONS
            .iter()
            .filter(|spec| !matches!(spec.kind, Kind::Variable(_)));
        command
            .next_help_heading("Capture (as istio-iptables)")
            .args(flags.map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for CaptureFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let given = |spec: &'static Spec| {
            let value = matches.try_get_one::<String>(spec.long).ok().flatten()?;
            Some(Given {
                option: spec.name,
                value: value.clone(),
                origin: Origin::Flag,
            })
        };
        self.given = OPTIONS.iter().filter_map(given).collect();
        Ok(())
    }
}

/// A flag as clap wants it. It may be given again, and may have a value that begins with a dash.
fn argument(spec: &'static Spec) -> Arg {
    let arg = Arg::new(spec.long)
        .long(spec.long)
        .help(spec.help)
        .value_name(if spec.value_name.is_empty() {
            "VALUE"
        } else {
            spec.value_name
        })
        .hide(spec.ignored)
        .overrides_with(spec.long);
    let arg = match spec.short {
        Some(letter) => arg.short(letter),
        None => arg,
    };
    match spec.kind {
        // A switch alone means true; a value must be attached to it.
        Kind::Switch => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
        Kind::Text | Kind::Variable(_) => arg.allow_hyphen_values(true),
    }
}

/// The environment as it is now.
pub(crate) fn environment() -> Environment {
    settings::all().into_iter().collect()
}
