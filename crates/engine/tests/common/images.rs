//! Small images, honest and otherwise, as archives.

use flate2::Compression;
use flate2::write::GzEncoder;
use remora_engine::image::Digest;
use serde_json::{Value, json};
use std::io::Write as _;
use std::path::Path;
use tar::{Builder, EntryType, Header};

/// One entry of a layer.
pub(crate) enum Item<'a> {
    File(&'a str, &'a [u8], u32),
    Directory(&'a str, u32),
    Symlink(&'a str, &'a str),
    Hardlink(&'a str, &'a str),
    Device(&'a str, EntryType, u32, u32),
}

/// A layer as a plain archive. Names are written as they are, however hostile.
pub(crate) fn layer(items: &[Item<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for item in items {
        let mut header = Header::new_gnu();
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        let (name, kind, mode, data, link): (&str, _, _, &[u8], _) = match item {
            Item::File(name, data, mode) => (name, EntryType::Regular, *mode, data, ""),
            Item::Directory(name, mode) => (name, EntryType::Directory, *mode, b"", ""),
            Item::Symlink(name, to) => (name, EntryType::Symlink, 0o777, b"", *to),
            Item::Hardlink(name, to) => (name, EntryType::Link, 0o644, b"", *to),
            Item::Device(name, kind, major, minor) => {
                header.set_device_major(*major).unwrap();
                header.set_device_minor(*minor).unwrap();
                (name, *kind, 0o600, b"", "")
            }
        };
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(data.len() as u64);
        let old = header.as_gnu_mut().unwrap();
        old.name[..name.len()].copy_from_slice(name.as_bytes());
        old.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        builder.append(&header, data).unwrap();
    }
    builder.into_inner().unwrap()
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The configuration for these layers (not compressed).
pub(crate) fn config(layers: &[Vec<u8>], inner: &Value) -> Vec<u8> {
    let diff_ids: Vec<String> = layers.iter().map(|l| Digest::of(l).to_string()).collect();
    let arch = if cfg!(target_arch = "x86_64") {
        "amd64"
    } else {
        "arm64"
    };
    json!({"architecture": arch, "os": "linux", "config": inner, "rootfs": {"type": "layers", "diff_ids": diff_ids}})
        .to_string()
        .into_bytes()
}

/// Puts files into an archive.
pub(crate) fn pack(path: &Path, files: &[(String, Vec<u8>)]) {
    let mut builder = Builder::new(std::fs::File::create(path).unwrap());
    for (name, data) in files {
        let mut header = Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, &data[..]).unwrap();
    }
    builder.finish().unwrap();
}

/// What `docker save` would write.
pub(crate) fn saved(path: &Path, name: &str, layers: &[Vec<u8>], inner: &Value) {
    let mut files = Vec::new();
    let mut names = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        names.push(format!("{index}/layer.tar"));
        files.push((format!("{index}/layer.tar"), layer.clone()));
    }
    files.push(("config.json".to_owned(), config(layers, inner)));
    let list = json!([{"Config": "config.json", "RepoTags": [name], "Layers": names}]);
    files.push(("manifest.json".to_owned(), list.to_string().into_bytes()));
    pack(path, &files);
}

/// Files of an OCI layout; `compressed` are the layers as they are stored.
pub(crate) fn layout(
    name: &str,
    layers: &[Vec<u8>],
    compressed: &[Vec<u8>],
    inner: &Value,
) -> Vec<(String, Vec<u8>)> {
    let config = config(layers, inner);
    let mut files = Vec::new();
    let mut put = |kind: &str, bytes: &[u8]| {
        let digest = Digest::of(bytes);
        files.push((format!("blobs/sha256/{}", digest.hex()), bytes.to_vec()));
        json!({"mediaType": kind, "digest": digest.as_str(), "size": bytes.len()})
    };
    let descriptors: Vec<Value> = compressed
        .iter()
        .map(|l| put("application/vnd.oci.image.layer.v1.tar+gzip", l))
        .collect();
    let config = put("application/vnd.oci.image.config.v1+json", &config);
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": descriptors}).to_string();
    let mut entry = put("application/vnd.oci.image.manifest.v1+json", manifest.as_bytes());
    entry["annotations"] = json!({"org.opencontainers.image.ref.name": name});
    files.push((
        "index.json".to_owned(),
        json!({"schemaVersion": 2, "manifests": [entry]})
            .to_string()
            .into_bytes(),
    ));
    files.push((
        "oci-layout".to_owned(),
        b"{\"imageLayoutVersion\":\"1.0.0\"}".to_vec(),
    ));
    files
}
