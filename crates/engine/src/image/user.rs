//! Users and groups by name, from the image's own files; never from this machine's.

use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Who a process runs as.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Further groups the image's files name for the user.
    pub groups: Vec<u32>,
    /// Home directory, `/` if the user is not listed.
    pub home: String,
    /// Whether the user was given by number (k8s: `runAsNonRoot` wants to know).
    pub numeric: bool,
}

/// A user the image does not know.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// No such user.
    #[error("the image's /etc/passwd has no user {0:?}")]
    User(String),
    /// No such group.
    #[error("the image's /etc/group has no group {0:?}")]
    Group(String),
}

/// Bytes of a passwd or group file that are looked at.
const FILE_MAX: u64 = 1 << 20;

/// Resolves `USER[:GROUP]`, names or numbers, against the layers of an image (topmost first).
pub fn resolve(user: &str, layers: &[PathBuf]) -> Result<Identity, UserError> {
    let passwd = read(layers, "etc/passwd");
    let group = read(layers, "etc/group");
    from_files(user, &passwd, &group)
}

fn from_files(user: &str, passwd: &str, group: &str) -> Result<Identity, UserError> {
    let (name, wanted_group) = match user.split_once(':') {
        Some((name, group)) => (name, Some(group).filter(|g| !g.is_empty())),
        None => (user, None),
    };
    let name = if name.is_empty() { "0" } else { name };
    let number = name.parse::<u32>().ok();
    let entry = passwd
        .lines()
        .filter_map(Entry::parse)
        .find(|entry| match number {
            Some(uid) => entry.id == uid,
            None => entry.name == name,
        });
    let uid = number.or(entry.as_ref().map(|e| e.id));
    let uid = uid.ok_or_else(|| UserError::User(name.to_owned()))?;
    let gid = match wanted_group {
        None => entry.as_ref().map_or(0, |e| e.group),
        Some(wanted) => group_id(wanted, group)?,
    };
    // As other runtimes: an explicit group means that the image's list is not wanted.
    let known = entry.as_ref().filter(|_| wanted_group.is_none());
    Ok(Identity {
        uid,
        gid,
        groups: known.map(|e| member_of(e.name, group)).unwrap_or_default(),
        home: entry.map_or("/", |e| e.home).to_owned(),
        numeric: number.is_some(),
    })
}

struct Entry<'a> {
    name: &'a str,
    id: u32,
    group: u32,
    home: &'a str,
}

impl<'a> Entry<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, id, group, _, home, ..] = fields[..] else {
            return None;
        };
        Some(Self {
            name,
            id: id.parse().ok()?,
            group: group.parse().ok()?,
            home,
        })
    }
}

fn groups(text: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let id = fields.nth(1)?.parse().ok()?;
        Some((name, id, fields.next().unwrap_or_default()))
    })
}

fn group_id(wanted: &str, text: &str) -> Result<u32, UserError> {
    if let Ok(id) = wanted.parse() {
        return Ok(id);
    }
    let found = groups(text).find(|(name, ..)| *name == wanted);
    found
        .map(|(_, id, _)| id)
        .ok_or_else(|| UserError::Group(wanted.to_owned()))
}

fn member_of(user: &str, text: &str) -> Vec<u32> {
    groups(text)
        .filter(|(.., members)| members.split(',').any(|m| m == user))
        .map(|(_, id, _)| id)
        .collect()
}

/// The file as the topmost layer that has it shows it; links never lead out of the layer.
fn read(layers: &[PathBuf], path: &str) -> String {
    for layer in layers {
        let Ok(found) = crate::sys::open_within(layer, Path::new(path)) else {
            continue;
        };
        if !found.metadata().is_ok_and(|m| m.is_file()) {
            return String::new();
        }
        let mut text = String::new();
        // Through /proc, because the descriptor is only for looking.
        let file = std::fs::File::open(format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&found)
        ));
        if let Ok(file) = file {
            // What is not text has no users.
            let _ = file.take(FILE_MAX).read_to_string(&mut text);
        }
        return text;
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001:The App:/home/app:/bin/sh\nbad line\n";
    const GROUP: &str = "root:x:0:\napp:x:1001:\nextra:x:2000:someone,app\nbroken\n";

    #[test]
    fn by_name_by_number_and_unknown() {
        let of = |user: &str| from_files(user, PASSWD, GROUP);
        let app = of("app").unwrap();
        assert_eq!(
            (app.uid, app.gid, app.groups, app.home.as_str()),
            (1000, 1001, vec![2000], "/home/app")
        );
        assert_eq!(of("1000").unwrap().gid, 1001);
        assert!(of("1000").unwrap().numeric);
        let unlisted = of("4711").unwrap();
        assert_eq!(
            (unlisted.uid, unlisted.gid, unlisted.home.as_str()),
            (4711, 0, "/")
        );
        let chosen = of("app:extra").unwrap();
        assert_eq!((chosen.gid, chosen.groups), (2000, vec![]));
        assert_eq!(of("app:33").unwrap().gid, 33);
        assert_eq!(of("").unwrap().home, "/root");
        assert!(matches!(of("nobody"), Err(UserError::User(_))));
        assert!(matches!(of("app:nogroup"), Err(UserError::Group(_))));
    }
}
