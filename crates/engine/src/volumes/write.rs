//! Writing volumes down.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Component, Path, PathBuf};

use super::{File, Source, Volume, VolumeError};

/// Writes volumes under `base`, one directory each, with these directories in them.
///
/// `memory`: what is to be in memory is mounted. That is for processes whose mounts nobody else sees; elsewhere it is a
/// directory.
pub fn prepare(
    volumes: &[Volume],
    nested: &[(String, PathBuf)],
    base: &Path,
    memory: bool,
) -> Result<(), VolumeError> {
    directory(base)?;
    for volume in volumes {
        let path = base.join(&volume.name);
        match &volume.source {
            Source::Host(host, wanted) => {
                host_path(host, wanted)?;
                continue;
            }
            Source::Empty | Source::Memory(_) => {
                directory(&path)?;
                if let (Source::Memory(size), true) = (&volume.source, memory) {
                    mount(&path, *size)?;
                }
                mode(&path, 0o777)?;
            }
            Source::Files(files) => {
                directory(&path)?;
                for file in files {
                    write(&path, &volume.name, file)?;
                }
            }
        }
        for (_, below) in nested.iter().filter(|(name, _)| *name == volume.name) {
            directory(&path.join(checked(&volume.name, below)?))?;
        }
        if let Some(group) = volume.group {
            give(&path, group)?;
        }
    }
    Ok(())
}

fn mount(path: &Path, size: Option<u64>) -> Result<(), VolumeError> {
    let size = size.map(|bytes| format!(",size={bytes}")).unwrap_or_default();
    crate::sys::mount::tmpfs(path, &format!("mode=0777{size}")).map_err(|source| VolumeError::Mount {
        path: path.to_owned(),
        source,
    })
}

/// Takes away what [`prepare`] mounted.
pub fn release(volumes: &[Volume], base: &Path) {
    for volume in volumes.iter().filter(|v| matches!(v.source, Source::Memory(_))) {
        // Where it was not mounted there is nothing to take away.
        let _ = crate::sys::mount::unmount(&base.join(&volume.name));
    }
}

/// Takes away everything that this process has mounted below a directory.
pub fn release_below(directory: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    for place in places.map(Path::new).filter(|place| place.starts_with(directory)) {
        // What stays is said by whoever removes the directory.
        let _ = crate::sys::mount::unmount(place);
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> VolumeError {
    let path = path.to_owned();
    move |source| VolumeError::Write {
        path: path.clone(),
        source,
    }
}

fn directory(path: &Path) -> Result<(), VolumeError> {
    fs::create_dir_all(path).map_err(failed(path))
}

fn mode(path: &Path, mode: u32) -> Result<(), VolumeError> {
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed(path))
}

fn write(base: &Path, volume: &str, file: &File) -> Result<(), VolumeError> {
    let path = base.join(checked(volume, Path::new(&file.path))?);
    if let Some(parent) = path.parent() {
        directory(parent)?;
    }
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .and_then(|mut opened| opened.write_all(&file.content))
        .map_err(failed(&path))?;
    mode(&path, file.mode)
}

/// A path that stays below the volume.
fn checked<'a>(volume: &str, path: &'a Path) -> Result<&'a Path, VolumeError> {
    let plain = |part| matches!(part, Component::Normal(_));
    if path.components().all(plain) && !path.as_os_str().is_empty() {
        return Ok(path);
    }
    Err(VolumeError::Escape {
        volume: volume.to_owned(),
        path: path.display().to_string(),
    })
}

/// Everything in a volume belongs to the pod's group, which may write wherever the owner may.
fn give(path: &Path, group: u32) -> Result<(), VolumeError> {
    let metadata = fs::symlink_metadata(path).map_err(failed(path))?;
    if metadata.is_symlink() {
        return Ok(());
    }
    chown(path, None, Some(group)).map_err(failed(path))?;
    let own = metadata.permissions().mode();
    if metadata.is_dir() {
        mode(path, own | 0o2770)?;
        for entry in fs::read_dir(path).map_err(failed(path))? {
            give(&entry.map_err(failed(path))?.path(), group)?;
        }
        return Ok(());
    }
    mode(path, own | (own >> 3 & 0o070))
}

fn host_path(path: &Path, wanted: &str) -> Result<(), VolumeError> {
    use std::os::unix::fs::FileTypeExt as _;
    match wanted {
        "DirectoryOrCreate" => return directory(path),
        "FileOrCreate" => {
            // A link is not followed, and nothing that exists is cut.
            let made = OpenOptions::new().write(true).create_new(true).open(path);
            match made {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(failed(path)(error));
                }
                _ => {}
            }
        }
        _ => {}
    }
    let found = fs::metadata(path).map_err(failed(path))?.file_type();
    let fits = match wanted {
        "Directory" => found.is_dir(),
        "File" | "FileOrCreate" => found.is_file(),
        "Socket" => found.is_socket(),
        "CharDevice" => found.is_char_device(),
        "BlockDevice" => found.is_block_device(),
        _ => true,
    };
    if fits {
        Ok(())
    } else {
        Err(VolumeError::HostPath {
            path: path.to_owned(),
            wanted: wanted.to_owned(),
        })
    }
}
