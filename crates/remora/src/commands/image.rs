//! `remora image`: an OCI archive of an image that holds this very binary, and nothing else.

use anyhow::{Context as _, bail};
use aws_lc_rs::digest::{SHA256, digest as hash};
use serde_json::json;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What the help says at length.
pub(crate) const ABOUT: &str = "\
Writes an OCI archive of an image with this binary, under the names Istio's templates call (`pilot-agent`,
`istio-iptables`), for the control plane and the sidecars. No Docker is needed.

    remora image --name registry.example/mesh/remora:1.0 -o remora.tar
    ctr -n k8s.io images import remora.tar        (or: skopeo copy oci-archive:remora.tar docker://…)

If a software bill of materials (CycloneDX, written by tools/sbom) lies next to the binary as BINARY.cdx.json, or is given
with --sbom, it is put into the image as /usr/share/sbom/remora.cdx.json, and annotations of the manifest name its path and
digest.

The binary must be static, because there is nothing else in the image:
    RUSTFLAGS='-C target-feature=+crt-static' cargo build --profile dist --target x86_64-unknown-linux-gnu";

/// What to write where.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name and tag of the image
    #[arg(long, value_name = "IMAGE", default_value = concat!("remora:", env!("CARGO_PKG_VERSION")))]
    name: String,
    /// Archive to write
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Binary to put in; this one unless given
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// `CycloneDX` SBOM of the binary; BINARY.cdx.json unless given, if that file exists
    #[arg(long, value_name = "FILE")]
    sbom: Option<PathBuf>,
}

/// What goes into the image.
#[derive(Clone, Copy)]
struct Content<'a> {
    binary: &'a [u8],
    sbom: Option<&'a [u8]>,
}

const BINARY: &str = "usr/local/bin/remora";
const SBOM: &str = "usr/share/sbom/remora.cdx.json";
/// What templates call it.
const NAMES: [&str; 3] = ["pilot-agent", "istio-iptables", "istio-clean-iptables"];
// istio: the user of the sidecar.
const PASSWD: &str =
    "root:x:0:0:root:/root:/sbin/nologin\nistio-proxy:x:1337:1337:istio-proxy:/:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nistio-proxy:x:1337:\n";
const OCI: &str = "application/vnd.oci.image";

/// Writes the archive.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some((_, tag)) = args.name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')) else {
        bail!("--name {:?} has no tag, as in remora:1.0", args.name);
    };
    let path = match &args.binary {
        Some(path) => path.clone(),
        None => std::env::current_exe().context("find this binary")?,
    };
    let binary = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    if needs_a_loader(&binary) {
        bail!(
            "{} is not static and would not start in an image without anything else; build it with \
             RUSTFLAGS='-C target-feature=+crt-static' cargo build --profile dist --target x86_64-unknown-linux-gnu",
            path.display()
        );
    }
    let sbom = read_sbom(args.sbom.as_deref(), &path)?;
    if let Some(sbom) = &sbom {
        check_sbom(sbom, &binary)?;
    }
    let content = Content {
        binary: &binary,
        sbom: sbom.as_deref(),
    };
    let archive = archive(&args.name, tag, content)?;
    write(&args.output, &archive).with_context(|| format!("write {}", args.output.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The SBOM that was requested, or the one next to the binary. Only the latter may be missing.
fn read_sbom(requested: Option<&Path>, binary: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    let mut adjacent = binary.as_os_str().to_owned();
    adjacent.push(".cdx.json");
    let path = requested.unwrap_or(Path::new(&adjacent));
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && requested.is_none() => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read the SBOM {}", path.display())),
    }
}

/// An SBOM of another binary would state something false about this image.
fn check_sbom(sbom: &[u8], binary: &[u8]) -> anyhow::Result<()> {
    let document: serde_json::Value = serde_json::from_slice(sbom).context("the SBOM is not JSON")?;
    let hashes = document["metadata"]["component"]["hashes"].as_array();
    let mut described = hashes
        .into_iter()
        .flatten()
        .filter(|hash| hash["alg"] == "SHA-256");
    let actual = digest(binary);
    if !described.any(|hash| hash["content"].as_str() == actual.strip_prefix("sha256:")) {
        bail!("the SBOM does not describe this binary ({actual}); write it again with tools/sbom BINARY");
    }
    Ok(())
}

/// All or nothing: a half-written archive must not be found under the name.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(bytes)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Whether an ELF file asks for a dynamic loader (a program header of type 3).
fn needs_a_loader(elf: &[u8]) -> bool {
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let field = elf.get(at..at + bytes)?;
        Some(
            field
                .iter()
                .rev()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
        )
    };
    let headers = || Some((number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?));
    let Some((start, size, count)) = headers() else {
        return false;
    };
    elf.starts_with(b"\x7fELF") && (0..count).any(|n| number(start + n * size, 4) == Some(3))
}

fn archive(name: &str, tag: &str, content: Content<'_>) -> io::Result<Vec<u8>> {
    let layer = layer(content)?;
    let config = json!({"architecture": architecture(), "os": "linux",
        "config": {"Entrypoint": ["/usr/local/bin/pilot-agent"],
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]}});
    let config = config.to_string().into_bytes();
    let described = |kind: &str, bytes: &[u8]| json!({"mediaType": format!("{OCI}.{kind}"), "digest": digest(bytes), "size": bytes.len()});
    let mut manifest = json!({"schemaVersion": 2, "mediaType": format!("{OCI}.manifest.v1+json"),
        "config": described("config.v1+json", &config), "layers": [described("layer.v1.tar", &layer)],
        "annotations": {"org.opencontainers.image.title": "remora", "org.opencontainers.image.licenses": "Apache-2.0"}});
    if let Some(sbom) = content.sbom {
        manifest["annotations"]["remora.dev/sbom.path"] = json!(format!("/{SBOM}"));
        manifest["annotations"]["remora.dev/sbom.digest"] = json!(digest(sbom));
    }
    let manifest = manifest.to_string().into_bytes();
    let mut entry = described("manifest.v1+json", &manifest);
    entry["platform"] = json!({"architecture": architecture(), "os": "linux"});
    entry["annotations"] =
        json!({"io.containerd.image.name": full(name), "org.opencontainers.image.ref.name": tag});
    let index =
        json!({"schemaVersion": 2, "mediaType": format!("{OCI}.index.v1+json"), "manifests": [entry]});
    let mut tar = tar::Builder::new(Vec::new());
    put(
        &mut tar,
        "oci-layout",
        0o644,
        json!({"imageLayoutVersion": "1.0.0"}).to_string().as_bytes(),
    )?;
    put(&mut tar, "index.json", 0o644, index.to_string().as_bytes())?;
    for blob in [&config, &manifest, &layer] {
        let path = digest(blob).replace(':', "/");
        put(&mut tar, &format!("blobs/{path}"), 0o644, blob)?;
    }
    tar.into_inner()
}

/// As containerd keeps names: with a registry.
fn full(name: &str) -> String {
    let image = remora_pod::image::Image::split(name);
    match (image.registry, image.repository.contains('/')) {
        (Some(_), _) => name.to_owned(),
        (None, true) => format!("docker.io/{name}"),
        (None, false) => format!("docker.io/library/{name}"),
    }
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The same bytes for the same content: no times, no owners.
fn layer(content: Content<'_>) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    for directory in [
        "etc",
        "tmp",
        "usr",
        "usr/local",
        "usr/local/bin",
        "usr/share",
        "usr/share/sbom",
        "var",
        "var/lib",
        "var/lib/istio",
        "var/run",
    ] {
        let mode = if directory == "tmp" { 0o1777 } else { 0o755 };
        let mut header = header(tar::EntryType::Directory, mode, 0);
        tar.append_data(&mut header, format!("{directory}/"), io::empty())?;
    }
    put(&mut tar, "etc/passwd", 0o644, PASSWD.as_bytes())?;
    put(&mut tar, "etc/group", 0o644, GROUP.as_bytes())?;
    put(&mut tar, BINARY, 0o755, content.binary)?;
    if let Some(sbom) = content.sbom {
        put(&mut tar, SBOM, 0o644, sbom)?;
    }
    for name in NAMES {
        let mut header = header(tar::EntryType::Symlink, 0o777, 0);
        tar.append_link(&mut header, format!("usr/local/bin/{name}"), "remora")?;
    }
    tar.into_inner()
}

fn put(tar: &mut tar::Builder<Vec<u8>>, path: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
    let mut header = header(tar::EntryType::Regular, mode, bytes.len() as u64);
    tar.append_data(&mut header, path, bytes)
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn digest(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = "sha256:".to_owned();
    for byte in hash(&SHA256, bytes).as_ref() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Content, archive, check_sbom, digest, full, needs_a_loader};
    use serde_json::Value;
    use std::collections::BTreeMap;
    use std::io::Read as _;

    const CONTENT: Content<'_> = Content {
        binary: b"binary",
        sbom: Some(b"sbom"),
    };

    fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut tar = tar::Archive::new(archive);
        tar.entries()
            .unwrap()
            .map(|entry| {
                let mut entry = entry.unwrap();
                let path = entry.path().unwrap().to_string_lossy().into_owned();
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes).unwrap();
                (path, bytes)
            })
            .collect()
    }

    #[test]
    fn every_digest_leads_to_its_bytes_down_to_the_binary() {
        let outer = files(&archive("remora:1", "1", CONTENT).unwrap());
        let blob = |descriptor: &Value| {
            let name = descriptor["digest"].as_str().unwrap();
            let bytes = &outer[&format!("blobs/{}", name.replace(':', "/"))];
            assert_eq!(
                (digest(bytes).as_str(), bytes.len() as u64),
                (name, descriptor["size"].as_u64().unwrap())
            );
            bytes.clone()
        };
        let index: Value = serde_json::from_slice(&outer["index.json"]).unwrap();
        let manifest: Value = serde_json::from_slice(&blob(&index["manifests"][0])).unwrap();
        blob(&manifest["config"]);
        let inner = files(&blob(&manifest["layers"][0]));
        assert_eq!(inner["usr/local/bin/remora"], b"binary");
        assert!(inner.contains_key("usr/local/bin/pilot-agent"));
        let annotated = |name: &str| manifest["annotations"][name].as_str().unwrap().to_owned();
        let path = annotated("remora.dev/sbom.path");
        let sbom = &inner[path.strip_prefix('/').unwrap()];
        assert_eq!(annotated("remora.dev/sbom.digest"), digest(sbom));
        assert_eq!(sbom, b"sbom");
    }

    #[test]
    fn the_same_binary_gives_the_same_image() {
        assert_eq!(
            archive("a:1", "1", CONTENT).unwrap(),
            archive("a:1", "1", CONTENT).unwrap()
        );
    }

    #[test]
    fn an_sbom_of_another_binary_is_refused() {
        let content = digest(b"binary").replace("sha256:", "");
        let sbom = format!(
            r#"{{"metadata": {{"component": {{"hashes": [{{"alg": "SHA-256", "content": "{content}"}}]}}}}}}"#
        );
        check_sbom(sbom.as_bytes(), b"binary").unwrap();
        let error = check_sbom(sbom.as_bytes(), b"another binary").unwrap_err();
        assert!(
            error.to_string().contains("does not describe this binary"),
            "{error}"
        );
        check_sbom(b"{}", b"binary").unwrap_err();
        check_sbom(b"no JSON", b"binary").unwrap_err();
    }

    #[test]
    fn names_are_written_as_containerd_keeps_them() {
        assert_eq!(full("remora:1"), "docker.io/library/remora:1");
        assert_eq!(full("mesh/remora:1"), "docker.io/mesh/remora:1");
        assert_eq!(full("localhost/remora:1"), "localhost/remora:1");
    }

    #[test]
    fn a_dynamic_program_is_noticed() {
        let shell = std::fs::read("/bin/sh").unwrap();
        assert!(needs_a_loader(&shell));
        assert!(!needs_a_loader(b"#!/bin/sh\n"));
    }
}
