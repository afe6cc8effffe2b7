//! Reads a command line as Go's pflag does: `--long value`, `--long=value`, `-x value`, `-xvalue`, `-x=value`,
//! clusters of switches, `--` ends the options.
//!
//! The binary's own command line goes through clap; this reader is for command lines found in pod manifests.

use super::read::{Given, Origin};
use super::table::{Kind, OPTIONS, Spec, find};

/// Why a command line could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgvError {
    /// A flag nobody knows.
    #[error("unknown flag {flag}")]
    Unknown {
        /// The flag with its dashes.
        flag: String,
    },
    /// A flag at the very end that needs a value.
    #[error("flag {flag} needs a value")]
    NoValue {
        /// The flag with its dashes.
        flag: String,
    },
    /// A word that is neither a flag nor a flag's value.
    #[error("unexpected argument {text:?}")]
    Positional {
        /// The word.
        text: String,
    },
}

/// Reads the arguments that follow the command's name. A flag given twice counts as its last value.
pub fn parse_argv<S: AsRef<str>>(args: &[S]) -> Result<Vec<Given>, ArgvError> {
    let mut given = Vec::new();
    let mut rest = args.iter().map(AsRef::as_ref);
    while let Some(arg) = rest.next() {
        if let Some(long) = arg.strip_prefix("--") {
            if long.is_empty() {
                break;
            }
            let (name, value) = split(long);
            let spec = find(name).ok_or_else(|| ArgvError::Unknown {
                flag: format!("--{name}"),
            })?;
            given.push(take(spec, value, &mut rest)?);
        } else if arg.len() > 1 && arg.starts_with('-') {
            cluster(&arg[1..], &mut rest, &mut given)?;
        } else {
            return Err(ArgvError::Positional { text: arg.to_owned() });
        }
    }
    match rest.next() {
        Some(extra) => Err(ArgvError::Positional {
            text: extra.to_owned(),
        }),
        None => Ok(given),
    }
}

fn split(text: &str) -> (&str, Option<&str>) {
    text.split_once('=')
        .map_or((text, None), |(name, value)| (name, Some(value)))
}

/// `-nf`, `-p15001`, `-p=15001`, `-p 15001`.
fn cluster<'a>(
    letters: &'a str,
    rest: &mut dyn Iterator<Item = &'a str>,
    given: &mut Vec<Given>,
) -> Result<(), ArgvError> {
    let mut letters = letters.chars();
    while let Some(letter) = letters.next() {
        let spec = OPTIONS
            .iter()
            .find(|spec| spec.short == Some(letter))
            .ok_or_else(|| ArgvError::Unknown {
                flag: format!("-{letter}"),
            })?;
        let tail = letters.as_str();
        if let Some(value) = tail.strip_prefix('=') {
            given.push(take(spec, Some(value), rest)?);
            return Ok(());
        }
        if spec.kind == Kind::Text && !tail.is_empty() {
            given.push(take(spec, Some(tail), rest)?);
            return Ok(());
        }
        given.push(take(spec, None, rest)?);
    }
    Ok(())
}

fn take(
    spec: &'static Spec,
    value: Option<&str>,
    rest: &mut dyn Iterator<Item = &str>,
) -> Result<Given, ArgvError> {
    let value = match (value, spec.kind) {
        (Some(value), _) => value.to_owned(),
        (None, Kind::Switch) => "true".to_owned(),
        (None, Kind::Text) => rest
            .next()
            .ok_or_else(|| ArgvError::NoValue {
                flag: format!("--{}", spec.long),
            })?
            .to_owned(),
    };
    Ok(Given {
        option: spec.long,
        value,
        origin: Origin::Flag,
    })
}
