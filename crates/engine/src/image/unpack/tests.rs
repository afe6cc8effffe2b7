//! Archives that ask for more than they may have.

use super::*;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write as _;
use tar::{EntryType, Header};

/// Small, so that no test needs much of anything.
const SMALL: Limits = Limits {
    bytes: 4 << 20,
    free: 64 << 10,
    ratio: 200,
    entries: 50,
    names: 2000,
    header: 8 << 10,
    path: 200,
    depth: 8,
};

/// One entry, with its name as it is.
fn entry(name: &str, kind: EntryType, data: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(data.len() as u64);
    header.set_mode(0o755);
    header.set_mtime(1);
    header.set_uid(0);
    header.set_gid(0);
    header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_cksum();
    let padding = data.len().next_multiple_of(512) - data.len();
    [header.as_bytes(), data, &vec![0; padding]].concat()
}

fn symlink(name: &str, target: &str) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Symlink);
    header.set_size(0);
    header.set_mode(0o777);
    header.set_mtime(1);
    header.set_uid(0);
    header.set_gid(0);
    let old = header.as_gnu_mut().unwrap();
    old.name[..name.len()].copy_from_slice(name.as_bytes());
    old.linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_cksum();
    header.as_bytes().to_vec()
}

/// A sparse file without any data, of this size.
fn sparse(name: &str, size: u64) -> Vec<u8> {
    let mut bytes = entry(name, EntryType::GNUSparse, b"");
    let mut header = Header::new_gnu();
    header.as_mut_bytes().copy_from_slice(&bytes[..512]);
    let gnu = header.as_gnu_mut().unwrap();
    // One empty piece at the end: all before it is a hole. Large numbers are written in base 256.
    for field in [&mut gnu.sparse[0].offset, &mut gnu.realsize] {
        field[4..].copy_from_slice(&size.to_be_bytes());
        field[0] = 0x80;
    }
    gnu.sparse[0].numbytes.copy_from_slice(b"00000000000\0");
    header.set_cksum();
    bytes[..512].copy_from_slice(header.as_bytes());
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Unpacks, and gives the whole chain of reasons if that fails.
fn unpacked(packed: &[u8], plain: &[u8], limits: Limits) -> Result<Skipped, String> {
    let dir = tempfile::tempdir().unwrap();
    let done = unpack(packed, dir.path(), &[], &Digest::of(plain), limits);
    done.map_err(|error| {
        let hint = error.hint().unwrap_or_default();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error}: {}; {hint}", source.unwrap_or_default())
    })
}

#[track_caller]
fn refused(archive: &[u8], why: &str) {
    let error = unpacked(archive, archive, SMALL).unwrap_err();
    assert!(error.contains(why) && error.contains("hostile"), "{error}");
}

#[test]
fn a_decompression_bomb_is_stopped() {
    let plain = entry("zeros", EntryType::Regular, &vec![0; 3 << 20]);
    let packed = gzip(&plain);
    assert!(plain.len() > packed.len() * 200);
    let error = unpacked(&packed, &plain, SMALL).unwrap_err();
    assert!(error.contains("200 times what was read"), "{error}");
    // The same without compression is no bomb, and what is small may have any ratio.
    unpacked(&plain, &plain, SMALL).unwrap();
    let little = entry("zeros", EntryType::Regular, &vec![0; 60 << 10]);
    unpacked(&gzip(&little), &little, SMALL).unwrap();
    // Nor may what comes after the end of the archive be one.
    let after = [entry("x", EntryType::Regular, b""), vec![0; 3 << 20]].concat();
    assert!(unpacked(&gzip(&after), &after, SMALL).is_err());
}

#[test]
fn more_than_a_layer_may_have_is_stopped() {
    refused(
        &entry("big", EntryType::Regular, &vec![7; 5 << 20]),
        "more than 4194304 bytes",
    );
}

#[test]
fn holes_of_sparse_files_count_as_content() {
    for size in [1 << 20, u64::MAX >> 1] {
        for name in ["file", ".wh.deleted", ".wh..wh..opq", "../out"] {
            let archive = sparse(name, size);
            let error = unpacked(&archive, &archive, SMALL).unwrap_err();
            let expected = if name == "../out" {
                "points out"
            } else {
                "content has more than"
            };
            assert!(error.contains(expected), "{name}: {error}");
        }
    }
    let small = sparse("file", 4096);
    unpacked(&small, &small, SMALL).unwrap();
}

#[test]
fn headers_do_not_fill_the_memory() {
    let long = vec![b'a'; 9 << 10];
    let record = [b"9999 path=".as_slice(), &long, b"\n"].concat();
    for kind in [EntryType::GNULongName, EntryType::GNULongLink] {
        refused(
            &[entry("l", kind, &long), entry("x", EntryType::Regular, b"")].concat(),
            "headers of an entry",
        );
    }
    let pax = entry("p", EntryType::XHeader, &record);
    refused(
        &[pax, entry("x", EntryType::Regular, b"")].concat(),
        "headers of an entry",
    );
    // A size that no archive can have, behind little data.
    let mut endless = entry("p", EntryType::XHeader, b"");
    endless[124..136].copy_from_slice(b"77777777777\0");
    let mut header = Header::new_gnu();
    header.as_mut_bytes().copy_from_slice(&endless[..512]);
    header.set_cksum();
    endless[..512].copy_from_slice(header.as_bytes());
    let packed = gzip(&[endless.clone(), vec![b'x'; 100 << 10]].concat());
    let error = unpacked(&packed, &endless, SMALL).unwrap_err();
    assert!(error.contains("headers of an entry"), "{error}");
    // A directory with content is strange, not hostile: its content is no header.
    let strange = [
        entry("d/", EntryType::Directory, &vec![0; 20 << 10]),
        entry("g", EntryType::XGlobalHeader, &vec![b'x'; 20 << 10]),
    ];
    let strange = strange.concat();
    unpacked(&strange, &strange, SMALL).unwrap();
}

#[test]
fn entries_and_their_names_are_counted() {
    let many = |count: usize, name: &dyn Fn(usize) -> String| -> Vec<u8> {
        (0..count)
            .flat_map(|i| entry(&name(i), EntryType::Regular, b""))
            .collect()
    };
    let short = |i| format!("f{i}");
    unpacked(&many(50, &short), &many(50, &short), SMALL).unwrap();
    refused(&many(51, &short), "more than 50 entries");
    refused(&many(40, &|i| format!("{}{i}", "n".repeat(60))), "bytes of names");
    let long = [
        entry("l", EntryType::GNULongName, "p/".repeat(101).as_bytes()),
        entry("x", EntryType::Regular, b""),
    ];
    refused(&long.concat(), "a path has more than 200 bytes");
}

#[test]
fn directories_are_not_endlessly_deep() {
    let deep = "d/".repeat(8) + "f";
    let fine = entry(&deep, EntryType::Regular, b"");
    unpacked(&fine, &fine, SMALL).unwrap();
    refused(
        &entry(&format!("d/{deep}"), EntryType::Regular, b""),
        "directories in one another",
    );
    // Nor through a link.
    let linked = [
        entry("a/a/a/a/a/", EntryType::Directory, b""),
        symlink("l", "a/a/a/a/a"),
        entry("l/b/b/b/b/b/f", EntryType::Regular, b""),
    ];
    refused(&linked.concat(), "directories in one another");
    // A link that goes to and fro takes time and leads nowhere.
    let fro = [
        entry("a/", EntryType::Directory, b""),
        symlink("l", &"a/../".repeat(18)),
        symlink("m", &"l/".repeat(10)),
        entry("m/f", EntryType::Regular, b""),
    ];
    assert!(unpacked(&fro.concat(), &fro.concat(), SMALL).is_err());
}

/// The last byte that is allowed is allowed.
#[test]
fn every_limit_is_exact() {
    let limits = |free: u64, ratio: u64| Limits {
        bytes: 100,
        free,
        ratio,
        entries: 3,
        names: 30,
        header: 50,
        path: 20,
        depth: 8,
    };
    let meter = Meter::new(limits(100, 0));
    assert!(meter.entry(20).is_ok() && meter.entry(10).is_ok());
    assert!(meter.entry(0).is_ok(), "the third");
    assert!(meter.entry(0).is_err(), "the fourth");
    assert!(Meter::new(limits(100, 0)).entry(21).is_err(), "a long path");
    let meter = Meter::new(limits(100, 0));
    assert!(meter.entry(20).is_ok() && meter.entry(11).is_err(), "all names");
    // Written bytes.
    let meter = Meter::new(limits(100, 0));
    assert!(meter.writes(60).is_ok() && meter.writes(40).is_ok());
    assert!(meter.writes(1).is_err());
    let meter = Meter::new(limits(10, 0));
    assert!(meter.writes(10).is_ok(), "so many are free");
    assert!(meter.writes(1).is_err(), "nothing was read for it");
    // For each byte that was read, so many may be written.
    let meter = Meter::new(limits(10, 3));
    io::copy(&mut meter.source(&[0; 20][..]), &mut io::sink()).unwrap();
    assert!(meter.writes(60).is_ok());
    assert!(meter.writes(1).is_err());
    // Headers are counted until they end, with each entry anew.
    let read = |meter: &std::rc::Rc<Meter>, bytes: usize| {
        let bytes = vec![0; bytes];
        let mut content = meter.content(&bytes[..]);
        io::copy(&mut content, &mut io::sink())
    };
    let meter = Meter::new(limits(100, 0));
    meter.header_begins();
    assert!(read(&meter, 30).is_ok());
    meter.header_ends();
    assert!(read(&meter, 10).is_ok());
    meter.header_begins();
    assert!(read(&meter, 50).is_ok());
    assert!(read(&meter, 1).is_err());
    let meter = Meter::new(limits(100, 0));
    assert!(read(&meter, 100).is_ok() && read(&meter, 1).is_err());
}

#[test]
fn what_can_be_done_is_said_where_something_can_be_done() {
    let entry = |source: io::Error| UnpackError::Entry {
        path: "p".to_owned(),
        source,
    };
    let os = io::Error::from_raw_os_error;
    let beyond = || io::Error::new(io::ErrorKind::FileTooLarge, "limit");
    for (error, expected) in [
        (entry(os(libc::ENOSPC)), Some("disk is full")),
        (entry(beyond()), Some("hostile")),
        (UnpackError::Read(beyond()), Some("hostile")),
        (entry(os(libc::EFBIG)), None),
        (entry(os(libc::ENOTSUP)), Some("extended attributes")),
        (entry(os(libc::EIO)), None),
        (UnpackError::Read(os(libc::EIO)), None),
    ] {
        let hint = error.hint();
        assert_eq!(hint.is_some(), expected.is_some(), "{error:?}: {hint:?}");
        assert!(
            hint.unwrap_or_default().contains(expected.unwrap_or_default()),
            "{hint:?}"
        );
    }
}

/// A directory with what an archive unpacks to.
fn placed(entries: &[Vec<u8>], limits: Limits) -> Result<tempfile::TempDir, UnpackError> {
    let archive = entries.concat();
    let dir = tempfile::tempdir().unwrap();
    unpack(&archive[..], dir.path(), &[], &Digest::of(&archive), limits)?;
    Ok(dir)
}

fn with_mode(mut entry: Vec<u8>, mode: u32, uid: u64) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.as_mut_bytes().copy_from_slice(&entry[..512]);
    header.set_mode(mode);
    header.set_uid(uid);
    header.set_gid(uid);
    header.set_cksum();
    entry[..512].copy_from_slice(header.as_bytes());
    entry
}

#[test]
fn links_of_the_layer_are_followed_from_where_they_are() {
    let dir = placed(
        &[
            entry("x/", EntryType::Directory, b""),
            entry("a/", EntryType::Directory, b""),
            symlink("a/l", "../x"),
            entry("a/l/f", EntryType::Regular, b""),
            symlink("a/m", "/x"),
            entry("a/m/g", EntryType::Regular, b""),
        ],
        SMALL,
    );
    let dir = dir.unwrap();
    assert!(dir.path().join("x/f").is_file() && dir.path().join("x/g").is_file());
}

#[test]
fn an_entry_that_changes_where_a_path_leads_counts_for_the_next_one() {
    let dir = placed(
        &[
            entry("a/b/c/", EntryType::Directory, b""),
            symlink("l", "a/b/c/.."),
            entry("l/one", EntryType::Regular, b""),
            symlink("l/c", "/"),
            entry("l/two", EntryType::Regular, b""),
        ],
        SMALL,
    );
    let dir = dir.unwrap();
    assert!(dir.path().join("a/b/one").is_file());
    assert!(dir.path().join("two").is_file(), "through the link to the root");
}

#[test]
fn as_many_links_and_steps_lead_to_a_path_as_may() {
    let chain = |links: usize| {
        let mut entries = vec![entry("d/", EntryType::Directory, b"")];
        let name = |number: usize| {
            if number == links {
                "d".to_owned()
            } else {
                format!("l{number}")
            }
        };
        entries.extend((0..links).map(|number| symlink(&name(number), &name(number + 1))));
        entries.push(entry("l0/f", EntryType::Regular, b""));
        placed(&entries, SMALL).map(|dir| dir.path().join("d/f").is_file())
    };
    assert!(chain(40).unwrap());
    assert!(chain(41).is_err());
    // Eight for each directory of the depth, the link itself among them.
    let steps = |target: String| {
        let entries = [
            entry("a/", EntryType::Directory, b""),
            symlink("l", &target),
            entry("l/f", EntryType::Regular, b""),
        ];
        placed(&entries, Limits { depth: 4, ..SMALL })
    };
    assert!(steps("a/../".repeat(15) + "a").is_ok(), "32 of 32");
    assert!(steps("a/../".repeat(16)).is_err(), "33 of 32");
}

/// A directory that a later entry replaced has no mode any more.
#[test]
fn the_mode_of_a_directory_is_not_given_to_what_replaces_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = placed(
        &[
            with_mode(entry("d/", EntryType::Directory, b""), 0o700, 0),
            with_mode(entry("d", EntryType::Regular, b"x"), 0o644, 0),
            with_mode(entry("e/", EntryType::Directory, b""), 0o711, 0),
        ],
        SMALL,
    );
    let dir = dir.unwrap();
    let mode = |name: &str| {
        std::fs::metadata(dir.path().join(name))
            .unwrap()
            .permissions()
            .mode()
            & 0o7777
    };
    assert_eq!([mode("d"), mode("e")], [0o644, 0o711]);
}

/// Opening a pipe waits for a writer, which never comes.
#[test]
fn a_pipe_is_no_directory() {
    let outcome = placed(
        &[
            entry("p", EntryType::Fifo, b""),
            entry("p/f", EntryType::Regular, b""),
        ],
        SMALL,
    );
    assert!(outcome.is_err());
}

#[test]
fn owners_and_times_are_those_of_the_archive() {
    use std::os::unix::fs::MetadataExt as _;
    let dir = placed(
        &[
            with_mode(entry("file", EntryType::Regular, b""), 0o4755, 1234),
            with_mode(symlink("link", "nowhere"), 0o777, 1234),
            with_mode(entry("pipe", EntryType::Fifo, b""), 0o600, 1234),
            with_mode(entry("dir/", EntryType::Directory, b""), 0o750, 1234),
        ],
        SMALL,
    );
    let dir = dir.unwrap();
    // Only root can give files away.
    let own = rustix::process::geteuid();
    let owner = if own.is_root() { 1234 } else { own.as_raw() };
    for name in ["file", "link", "pipe", "dir"] {
        let found = std::fs::symlink_metadata(dir.path().join(name)).unwrap();
        assert_eq!((found.uid(), found.mtime()), (owner, 1), "{name}");
    }
    let mode = std::fs::metadata(dir.path().join("file")).unwrap().mode() & 0o7777;
    assert_eq!(mode, 0o4755, "set-user-id outlives the change of owner");
}

#[test]
fn what_a_layer_brings_is_newer_than_what_it_deletes() {
    let dir = placed(
        &[
            entry("kept", EntryType::Regular, b"new"),
            entry(".wh.kept", EntryType::Regular, b""),
        ],
        SMALL,
    );
    let dir = dir.unwrap();
    assert_eq!(std::fs::read(dir.path().join("kept")).unwrap(), b"new");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}
