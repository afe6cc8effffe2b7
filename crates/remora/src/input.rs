//! Manifests from files, directories and standard input, one document at a time.
//!
//! Input is read twice (first for what the documents say about each other, then for work), so standard input is
//! kept in an unnamed file. Memory is needed for one document, however many there are.

use anyhow::{Context as _, bail};
use remora_pod::yaml::{RawDocument, Splitter};
use std::fs::File;
use std::io::{self, Read, Seek as _};
use std::path::{Path, PathBuf};

/// Read in pieces of this size.
const PIECE: usize = 64 * 1024;

/// One file of the input.
pub(crate) struct Source {
    /// As the user named it.
    pub(crate) name: String,
    opened: Opened,
}

enum Opened {
    Path(PathBuf),
    /// Standard input, kept.
    Kept(File),
    /// Not from a file.
    Text(String),
}

/// All files of the input, in order.
pub(crate) struct Input {
    pub(crate) sources: Vec<Source>,
}

impl Input {
    /// Finds the files that `-f` names: files, directories (their `.yaml`, `.yml`, `.json`), `-`.
    pub(crate) fn find(names: &[String], recursive: bool) -> anyhow::Result<Self> {
        let mut sources = Vec::new();
        let mut stdin_used = false;
        for name in names {
            if name == "-" {
                if std::mem::replace(&mut stdin_used, true) {
                    bail!("standard input (-f -) can be read only once");
                }
                sources.push(Source {
                    name: "<stdin>".to_owned(),
                    opened: Opened::Kept(keep_stdin()?),
                });
                continue;
            }
            let path = PathBuf::from(name);
            let metadata = std::fs::metadata(&path).map_err(|e| opening(name, &e))?;
            if metadata.is_dir() {
                let before = sources.len();
                walk(&path, recursive, &mut sources)?;
                if sources.len() == before {
                    let deeper = if recursive {
                        ""
                    } else {
                        " (-R looks into its subdirectories)"
                    };
                    bail!("directory {name} holds no .yaml, .yml or .json file{deeper}");
                }
            } else {
                sources.push(Source {
                    name: name.clone(),
                    opened: Opened::Path(path),
                });
            }
        }
        Ok(Self { sources })
    }

    /// Bytes of all files together, as far as they are known.
    pub(crate) fn bytes(&self) -> u64 {
        self.sources.iter().map(Source::bytes).sum()
    }
}

/// In the words of the tools people know.
fn opening(name: &str, error: &io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::NotFound => anyhow::anyhow!("open {name}: no such file or directory"),
        io::ErrorKind::PermissionDenied => anyhow::anyhow!("open {name}: permission denied"),
        _ => anyhow::anyhow!("open {name}: {error}"),
    }
}

fn keep_stdin() -> anyhow::Result<File> {
    let mut file = tempfile::tempfile().with_context(|| {
        format!(
            "keep standard input in a file under {}",
            std::env::temp_dir().display()
        )
    })?;
    io::copy(&mut io::stdin().lock(), &mut file).context("read standard input")?;
    Ok(file)
}

fn walk(directory: &Path, recursive: bool, sources: &mut Vec<Source>) -> anyhow::Result<()> {
    let shown = directory.display().to_string();
    let entries = std::fs::read_dir(directory).map_err(|e| opening(&shown, &e))?;
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<_, _>>()
        .map_err(|e| opening(&shown, &e))?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            if recursive {
                walk(&path, recursive, sources)?;
            }
        } else if is_manifest(&path) {
            sources.push(Source {
                name: path.display().to_string(),
                opened: Opened::Path(path),
            });
        }
    }
    Ok(())
}

fn is_manifest(path: &Path) -> bool {
    path.extension()
        .and_then(|e| e.to_str())
        .is_some_and(|e| matches!(e, "yaml" | "yml" | "json"))
}

impl Source {
    /// Documents that are in no file, under a name for messages.
    pub(crate) fn of_text(name: String, text: String) -> Self {
        Self {
            name,
            opened: Opened::Text(text),
        }
    }

    fn bytes(&self) -> u64 {
        let metadata = match &self.opened {
            Opened::Path(path) => std::fs::metadata(path),
            Opened::Kept(file) => file.metadata(),
            Opened::Text(text) => return text.len() as u64,
        };
        metadata.map_or(0, |m| m.len())
    }

    fn open(&self) -> anyhow::Result<Box<dyn Read + '_>> {
        match &self.opened {
            Opened::Path(path) => {
                let file = File::open(path).map_err(|e| opening(&self.name, &e))?;
                Ok(Box::new(file))
            }
            Opened::Text(text) => Ok(Box::new(text.as_bytes())),
            Opened::Kept(file) => {
                let mut file = file.try_clone().context("read standard input again")?;
                file.rewind().context("read standard input again")?;
                Ok(Box::new(file))
            }
        }
    }

    /// Hands the documents over, one after the other, without the empty ones.
    pub(crate) fn each(
        &self,
        mut visit: impl FnMut(RawDocument<'static>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut file = self.open()?;
        let mut splitter = Splitter::default();
        let mut text = Utf8::default();
        let mut buffer = vec![0; PIECE];
        loop {
            let count = file
                .read(&mut buffer)
                .with_context(|| format!("read {}", self.name))?;
            let piece = text.push(buffer.get(..count).unwrap_or_default());
            let Some(piece) = piece.filter(|_| count > 0 || text.is_complete()) else {
                bail!("{}: not UTF-8 text (is this a manifest?)", self.name);
            };
            for document in splitter.push(&piece) {
                hand_over(document, &mut visit)?;
            }
            if count == 0 {
                break;
            }
        }
        for document in splitter.finish() {
            hand_over(document, &mut visit)?;
        }
        Ok(())
    }
}

fn hand_over(
    document: RawDocument<'static>,
    visit: &mut impl FnMut(RawDocument<'static>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if document.is_blank() {
        Ok(())
    } else {
        visit(document)
    }
}

/// Turns pieces cut anywhere into text.
#[derive(Default)]
struct Utf8 {
    rest: Vec<u8>,
}

impl Utf8 {
    /// The text that is complete now; `None` when it is no UTF-8.
    fn push(&mut self, piece: &[u8]) -> Option<String> {
        self.rest.extend_from_slice(piece);
        match std::str::from_utf8(&self.rest) {
            Ok(_) => String::from_utf8(std::mem::take(&mut self.rest)).ok(),
            Err(error) if error.error_len().is_none() => {
                let tail = self.rest.split_off(error.valid_up_to());
                String::from_utf8(std::mem::replace(&mut self.rest, tail)).ok()
            }
            Err(_) => None,
        }
    }

    fn is_complete(&self) -> bool {
        self.rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::Utf8;

    #[test]
    fn letters_cut_in_two_come_out_whole() {
        let text = "grüße, 世界";
        for cut in 0..text.len() {
            let mut utf8 = Utf8::default();
            let (a, b) = text.as_bytes().split_at(cut);
            let out = utf8.push(a).unwrap() + &utf8.push(b).unwrap();
            assert_eq!(out, text);
            assert!(utf8.is_complete());
        }
        assert!(Utf8::default().push(&[0xff, 0xfe]).is_none());
    }
}
