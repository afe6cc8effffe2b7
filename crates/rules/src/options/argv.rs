//! Reads a command line as Go's pflag does: `--long value`, `--long=value`, `-x value`, `-xvalue`, `-x=value`,
//! clusters of switches, `--` ends the options.
//!
//! It reads the arguments of `istio-iptables`, both of this program and in pod manifests. All other commands of the
//! program use clap.

use super::read::{Given, Origin};
use super::table::{Kind, Name, OPTIONS, Spec, find};

/// Why a command line could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgvError {
    /// An unknown flag.
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

/// The position of a flag's value.
#[derive(Debug, Clone, Copy)]
enum ValuePosition {
    /// No value: a boolean flag without an argument.
    Nowhere,
    /// In this word, from this byte on.
    Word(usize, usize),
}

/// Reads the arguments that follow the command's name. A flag given twice counts as its last value.
pub fn parse_argv<S: AsRef<str>>(args: &[S]) -> Result<Vec<Given>, ArgvError> {
    let given = |(spec, at): (&'static Spec, ValuePosition)| Given {
        option: spec.name,
        value: match at {
            ValuePosition::Nowhere => "true",
            ValuePosition::Word(word, from) => args.get(word).map_or("", |text| &text.as_ref()[from..]),
        }
        .to_owned(),
        origin: Origin::Flag,
    };
    Ok(scan(args)?.into_iter().map(given).collect())
}

/// Replaces the value of an option in the arguments, in any notation; appends the flag if it is missing.
pub fn set_argument(args: &[String], option: Name, value: &str) -> Result<Vec<String>, ArgvError> {
    let mut args = args.to_vec();
    match scan(&args)?.iter().rfind(|(spec, _)| spec.name == option) {
        Some((_, ValuePosition::Word(word, from))) => args[*word].replace_range(from.., value),
        Some((_, ValuePosition::Nowhere)) | None => args.push(format!("--{}={value}", option.spec().long)),
    }
    Ok(args)
}

fn scan<S: AsRef<str>>(args: &[S]) -> Result<Vec<(&'static Spec, ValuePosition)>, ArgvError> {
    let mut found = Vec::new();
    let mut rest = args.iter().map(AsRef::as_ref).enumerate();
    while let Some((index, arg)) = rest.next() {
        if let Some(long) = arg.strip_prefix("--") {
            if long.is_empty() {
                break;
            }
            let name = long.split('=').next().unwrap_or_default();
            let spec = find(name).ok_or_else(|| ArgvError::Unknown {
                flag: format!("--{name}"),
            })?;
            let attached = long
                .contains('=')
                .then_some(ValuePosition::Word(index, name.len() + 3));
            found.push((spec, value_at(spec, attached, &mut rest)?));
        } else if arg.len() > 1 && arg.starts_with('-') {
            cluster(index, arg, &mut rest, &mut found)?;
        } else {
            return Err(ArgvError::Positional { text: arg.to_owned() });
        }
    }
    match rest.next() {
        Some((_, extra)) => Err(ArgvError::Positional {
            text: extra.to_owned(),
        }),
        None => Ok(found),
    }
}

/// `-nf`, `-p15001`, `-p=15001`, `-p 15001`.
fn cluster<'a>(
    index: usize,
    arg: &'a str,
    rest: &mut dyn Iterator<Item = (usize, &'a str)>,
    found: &mut Vec<(&'static Spec, ValuePosition)>,
) -> Result<(), ArgvError> {
    for (at, letter) in arg.char_indices().skip(1) {
        let spec = OPTIONS
            .iter()
            .find(|spec| spec.short == Some(letter))
            .ok_or_else(|| ArgvError::Unknown {
                flag: format!("-{letter}"),
            })?;
        let tail = at + letter.len_utf8();
        let attached = match arg.as_bytes().get(tail) {
            Some(b'=') => Some(ValuePosition::Word(index, tail + 1)),
            Some(_) if spec.kind == Kind::Text => Some(ValuePosition::Word(index, tail)),
            _ => None,
        };
        found.push((spec, value_at(spec, attached, rest)?));
        if attached.is_some() {
            return Ok(());
        }
    }
    Ok(())
}

/// Where the value of a flag is: attached to it, or the next word.
fn value_at(
    spec: &'static Spec,
    attached: Option<ValuePosition>,
    rest: &mut dyn Iterator<Item = (usize, &str)>,
) -> Result<ValuePosition, ArgvError> {
    match (attached, spec.kind) {
        (Some(at), _) => Ok(at),
        (None, Kind::Switch) => Ok(ValuePosition::Nowhere),
        (None, Kind::Text | Kind::Variable(_)) => match rest.next() {
            Some((index, _)) => Ok(ValuePosition::Word(index, 0)),
            None => Err(ArgvError::NoValue {
                flag: format!("--{}", spec.long),
            }),
        },
    }
}
