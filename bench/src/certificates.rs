//! Certificates for contenders that do not get them from a control plane: an authority and one for each side, P-256.

use crate::world::World;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Made once for a run; `roots.pem`, and `web` and `cart` with `.pem` and `.key`.
pub fn files(world: &World) -> PathBuf {
    let directory = world.path("certificates");
    if directory.exists() {
        return directory;
    }
    std::fs::create_dir_all(&directory).expect("directory");
    let key = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        "/O=bench",
    ];
    let root = [
        "req",
        "-x509",
        "-days",
        "2",
        "-keyout",
        "roots.key",
        "-out",
        "roots.pem",
    ];
    openssl(&directory, &root, &key);
    for account in ["web", "cart"] {
        let name = |end: &str| format!("{account}.{end}");
        let (private, asked, public, rest) = (name("key"), name("csr"), name("pem"), name("txt"));
        let extensions = format!(
            "subjectAltName=critical,URI:spiffe://cluster.local/ns/shop/sa/{account}\nbasicConstraints=critical,CA:FALSE\n"
        );
        std::fs::write(directory.join(&rest), extensions).expect("extensions");
        openssl(
            &directory,
            &["req", "-new", "-keyout", &private, "-out", &asked],
            &key,
        );
        let sign = [
            "x509",
            "-req",
            "-days",
            "2",
            "-CA",
            "roots.pem",
            "-CAkey",
            "roots.key",
            "-CAcreateserial",
        ];
        openssl(
            &directory,
            &sign,
            &["-extfile", &rest, "-in", &asked, "-out", &public],
        );
        // The proxies run as another user.
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(directory.join(&private), readable).expect("permissions");
    }
    directory
}

fn openssl(directory: &PathBuf, words: &[&str], more: &[&str]) {
    let done = Command::new("openssl")
        .args(words)
        .args(more)
        .current_dir(directory)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(
        done.is_ok_and(|status| status.success()),
        "openssl {words:?} failed: is it installed?"
    );
}
