//! The file format: a title line, a digest, and a protobuf message.

use super::{Contents, Entry};
use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use prost::Message;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

const TITLE: &[u8] = b"remora last good configuration, version 1\n";
/// Size limit of the file; enough for a mesh of tens of thousands of workloads.
const MAX_FILE_BYTES: usize = 64 << 20;

/// A configuration that the sidecar can start with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) contents: Contents,
    /// When the control plane last confirmed it.
    pub(crate) confirmed: SystemTime,
}

/// Why an existing file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("others may have written it: only its owner, user {0}, may be able to")]
    Open(u32),
    #[error("it is larger than {MAX_FILE_BYTES} bytes")]
    Large,
    #[error("it is damaged")]
    Damaged,
    #[error("it is of {found:?}, and this is {own:?}")]
    Foreign { own: String, found: String },
    #[error("it is {} s old, more than {} s", age.as_secs(), longest.as_secs())]
    Old { age: Duration, longest: Duration },
}

/// Field number of the resources in the message.
const RESOURCES: u32 = 2;

#[derive(Clone, PartialEq, Message)]
struct Body {
    #[prost(string, tag = "1")]
    owner: String,
    #[prost(message, repeated, tag = "2")]
    resources: Vec<Resource>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    version: String,
    #[prost(bytes = "vec", tag = "4")]
    bytes: Vec<u8>,
}

/// Writes the file atomically.
pub(super) fn write(path: &Path, body: &[u8]) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
    }
    let fresh = path.with_extension("new");
    let written = fill(&fresh, body).and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        // A partial file is of no use.
        let _ = fs::remove_file(&fresh);
    }
    written
}

/// Encodes the file; an error if it exceeds the size limit.
pub(super) fn encode(owner: &str, contents: &Contents) -> io::Result<Vec<u8>> {
    let size = |(name, entry): (&String, &Entry)| name.len() + entry.version.len() + entry.bytes.len();
    let total: usize = contents.values().flatten().map(size).sum();
    if total > MAX_FILE_BYTES {
        let text =
            format!("the configuration has {total} bytes, and {MAX_FILE_BYTES} are the most that is kept");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    let owner = owner.to_owned();
    let mut body = Body {
        owner,
        resources: Vec::new(),
    }
    .encode_to_vec();
    for (type_url, resources) in contents {
        for (name, entry) in resources {
            // Resources are encoded one at a time, so that a large mesh is not copied.
            let resource = Resource {
                type_url: type_url.clone(),
                name: name.clone(),
                version: entry.version.clone(),
                bytes: entry.bytes.clone(),
            };
            prost::encoding::message::encode(RESOURCES, &resource, &mut body);
        }
    }
    Ok(body)
}

fn fill(path: &Path, body: &[u8]) -> io::Result<()> {
    // A file left by a killed process is removed first, so that the new one gets the right mode.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(TITLE)?;
    file.write_all(digest(&SHA256, body).as_ref())?;
    file.write_all(body)?;
    // A full disk fails here, before the previous file is replaced.
    file.sync_all()
}

/// Records that the control plane confirmed the written configuration.
pub(super) fn confirm(path: &Path, now: SystemTime) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.set_modified(now)
}

/// Reads the file; `None` if there is none.
pub(super) fn read(
    path: &Path,
    owner: &str,
    longest: Duration,
    now: SystemTime,
) -> Result<Option<Found>, Unusable> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let seen = file.metadata()?;
    if seen.permissions().mode() & 0o022 != 0 {
        return Err(Unusable::Open(seen.uid()));
    }
    let mut bytes = Vec::new();
    let bound = TITLE.len() + SHA256_OUTPUT_LEN + 2 * MAX_FILE_BYTES;
    file.take(bound as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > bound {
        return Err(Unusable::Large);
    }
    let contents = decode(&bytes, owner)?;
    let confirmed = seen.modified()?;
    // A time in the future means that the clock was set back since.
    let age = now.duration_since(confirmed).unwrap_or_default();
    if age > longest {
        return Err(Unusable::Old { age, longest });
    }
    Ok(Some(Found { contents, confirmed }))
}

fn decode(bytes: &[u8], own: &str) -> Result<Contents, Unusable> {
    let rest = bytes.strip_prefix(TITLE).ok_or(Unusable::Damaged)?;
    let (sum, body) = rest
        .split_at_checked(SHA256_OUTPUT_LEN)
        .ok_or(Unusable::Damaged)?;
    if digest(&SHA256, body).as_ref() != sum {
        return Err(Unusable::Damaged);
    }
    let body = Body::decode(body).map_err(|_| Unusable::Damaged)?;
    if body.owner != own {
        return Err(Unusable::Foreign {
            own: own.to_owned(),
            found: body.owner,
        });
    }
    let mut contents = Contents::new();
    for resource in body.resources {
        let entry = Entry {
            version: resource.version,
            bytes: resource.bytes,
        };
        contents
            .entry(resource.type_url)
            .or_default()
            .insert(resource.name, entry);
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::{MAX_FILE_BYTES, Unusable, confirm, encode, read, write};
    use crate::snapshot::{Contents, Entry};
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::{Duration, SystemTime};

    const LONGEST: Duration = Duration::from_hours(1);

    fn contents() -> Contents {
        let entry = |text: &str| Entry {
            version: text.to_owned(),
            bytes: text.as_bytes().to_vec(),
        };
        Contents::from([
            ("a".to_owned(), [("x".to_owned(), entry("1"))].into()),
            (
                "b".to_owned(),
                [("y".to_owned(), entry("2")), ("z".to_owned(), entry(""))].into(),
            ),
        ])
    }

    #[test]
    fn what_is_written_is_read_and_belongs_to_one_user() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("below/mesh.snapshot");
        let now = SystemTime::now();
        assert!(read(&path, "me", LONGEST, now).unwrap().is_none());
        // Left behind by a killed process.
        fs::create_dir(directory.path().join("below")).unwrap();
        fs::write(path.with_extension("new"), "half").unwrap();
        write(&path, &encode("me", &contents()).unwrap()).unwrap();
        let found = read(&path, "me", LONGEST, now).unwrap().unwrap();
        assert_eq!(found.contents, contents());
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let earlier = now - Duration::from_secs(100);
        confirm(&path, earlier).unwrap();
        assert_eq!(
            read(&path, "me", LONGEST, now).unwrap().unwrap().confirmed,
            earlier
        );
    }

    #[test]
    fn what_cannot_be_trusted_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mesh.snapshot");
        let now = SystemTime::now();
        write(&path, &encode("me", &contents()).unwrap()).unwrap();
        let error = |owner| read(&path, owner, LONGEST, now).unwrap_err();
        assert!(matches!(error("you"), Unusable::Foreign { .. }));
        confirm(&path, now - LONGEST - Duration::from_secs(1)).unwrap();
        assert!(matches!(error("me"), Unusable::Old { .. }));
        // A clock that was set back makes nothing old.
        confirm(&path, now + LONGEST).unwrap();
        assert!(read(&path, "me", LONGEST, now).is_ok());
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut broken = whole.clone();
            broken[at] ^= 1;
            fs::write(&path, &broken).unwrap();
            assert!(matches!(error("me"), Unusable::Damaged), "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert!(matches!(error("me"), Unusable::Damaged), "cut at {at}");
        }
        fs::write(&path, &whole).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
        assert!(matches!(error("me"), Unusable::Open(_)));
    }

    #[test]
    fn too_much_is_not_kept() {
        let mut contents = contents();
        let large = Entry {
            version: String::new(),
            bytes: vec![0; MAX_FILE_BYTES],
        };
        contents.insert("c".to_owned(), [("large".to_owned(), large)].into());
        let error = encode("me", &contents).unwrap_err();
        assert!(error.to_string().contains("the most that is kept"), "{error}");
    }
}
