//! Reads a command line as Go's pflag does: `--long value`, `--long=value`, `-x value`, `-xvalue`, `-x=value`,
//! clusters of switches, `--` ends the options.
//!
//! The binary's own command line goes through clap; this reader is for command lines found in pod manifests.

use super::read::{Given, Origin};
use super::table::{Kind, Name, OPTIONS, Spec, find};

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

/// Where the value of a flag stands.
#[derive(Debug, Clone, Copy)]
enum At {
    /// Nowhere: a switch that stands alone.
    Nowhere,
    /// In this word, from this byte on.
    Word(usize, usize),
}

/// Reads the arguments that follow the command's name. A flag given twice counts as its last value.
pub fn parse_argv<S: AsRef<str>>(args: &[S]) -> Result<Vec<Given>, ArgvError> {
    let given = |(spec, at): (&'static Spec, At)| Given {
        option: spec.name,
        value: match at {
            At::Nowhere => "true",
            At::Word(word, from) => args.get(word).map_or("", |text| &text.as_ref()[from..]),
        }
        .to_owned(),
        origin: Origin::Flag,
    };
    Ok(scan(args)?.into_iter().map(given).collect())
}

/// The arguments with another value for an option, wherever and however it is written; at the end if it is not there.
pub fn set_argument(args: &[String], option: Name, value: &str) -> Result<Vec<String>, ArgvError> {
    let mut args = args.to_vec();
    match scan(&args)?.iter().rfind(|(spec, _)| spec.name == option) {
        Some((_, At::Word(word, from))) => args[*word].replace_range(from.., value),
        Some((_, At::Nowhere)) | None => args.push(format!("--{}={value}", option.spec().long)),
    }
    Ok(args)
}

fn scan<S: AsRef<str>>(args: &[S]) -> Result<Vec<(&'static Spec, At)>, ArgvError> {
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
            let attached = long.contains('=').then_some(At::Word(index, name.len() + 3));
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
    found: &mut Vec<(&'static Spec, At)>,
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
            Some(b'=') => Some(At::Word(index, tail + 1)),
            Some(_) if spec.kind == Kind::Text => Some(At::Word(index, tail)),
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
    attached: Option<At>,
    rest: &mut dyn Iterator<Item = (usize, &str)>,
) -> Result<At, ArgvError> {
    match (attached, spec.kind) {
        (Some(at), _) => Ok(at),
        (None, Kind::Switch) => Ok(At::Nowhere),
        (None, Kind::Text | Kind::Variable(_)) => match rest.next() {
            Some((index, _)) => Ok(At::Word(index, 0)),
            None => Err(ArgvError::NoValue {
                flag: format!("--{}", spec.long),
            }),
        },
    }
}
