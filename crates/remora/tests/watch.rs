//! What a person sees of `remora run`: a picture on a terminal, lines elsewhere, and measured beside predicted.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::process::{Command, Stdio};

/// An init container that fails once, then works; the application holds on.
const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: one, namespace: shop}
spec:
  terminationGracePeriodSeconds: 3
  initContainers:
  - name: prepare
    image: remora
    args: [demo, call, 'http://127.0.0.1:15021/healthz/ready', --tries, '60']
  containers:
  - name: app
    image: remora
    args: [demo, hello]
    readinessProbe: {tcpSocket: {port: 9080}, periodSeconds: 1}
";

fn command_line(scene: &Path, more: &str) -> String {
    std::fs::write(scene.join("pod.yaml"), POD).unwrap();
    format!(
        "cd {dir} && {} run -f pod.yaml --state-dir state --image-store images {more}",
        env!("CARGO_BIN_EXE_remora"),
        dir = scene.display()
    )
}

/// Exit code, and everything that was shown.
fn sh(command: &str) -> (Option<i32>, String) {
    let output = Command::new("sh")
        .args(["-c", &format!("{command} 2>&1")])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

#[test]
fn measured_stands_beside_predicted() {
    let scene = tempfile::tempdir().unwrap();
    let page = scene.path().join("report.html");
    let more = format!("--until ready --report {}", page.display());
    let (code, text) = sh(&command_line(scene.path(), &more));
    assert_eq!(code, Some(0), "{text}");
    assert!(!text.contains('\x1b'), "no terminal, no colours: {text}");
    for wanted in [
        "shop/one  network: through the proxy",
        "everything is ready after",
        "network as predicted",
        "measured; in the end the pod was gone",
        "predicted by the model",
        "side  istio-proxy",
    ] {
        assert!(text.contains(wanted), "{wanted:?} is missing: {text}");
    }
    // Twice the same lanes: the application only ever met the proxy.
    let lanes: Vec<&str> = text.lines().filter(|l| l.starts_with("main  app")).collect();
    assert_eq!(lanes.len(), 2, "{text}");
    assert!(
        lanes.iter().all(|l| l.contains('█') && !l.contains(['x', '▒'])),
        "{text}"
    );
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert_eq!(page.matches("<svg class=\"remora\" viewBox").count(), 2);
    for wanted in [
        "<title>remora run</title>",
        "What happened, measured.",
        "was as predicted",
    ] {
        assert!(page.contains(wanted), "{wanted:?} is missing");
    }
}

#[test]
fn a_terminal_shows_pods_as_they_are() {
    let scene = tempfile::tempdir().unwrap();
    let inner = command_line(scene.path(), "--until ready --logs");
    let transcript = scene.path().join("transcript");
    let script = format!(
        "TERM=xterm script -qec 'stty rows 30 cols 120; {inner}' {}",
        transcript.display()
    );
    let (code, text) = sh(&script);
    assert_eq!(code, Some(0), "{text}");
    let plain = anstream::adapter::strip_str(&text).to_string();
    // The picture was drawn over itself, with pod, containers, lane, and lines going by above.
    assert!(text.contains("A\r\x1b[J"), "{text:?}");
    for wanted in [
        "1 pods, 0 ready   Ctrl-C stops",
        "1 pods, 1 ready   Ctrl-C stops",
        "● istio-proxy",
        "✓ istio-init (init)",
        "through the proxy",
        "shop/one app ! note: listening on port 9080",
        "stopping (Ctrl-C again: at once)",
        "network as predicted",
    ] {
        assert!(plain.contains(wanted), "{wanted:?} is missing: {plain}");
    }
    // No line was broken by the terminal.
    let widest = plain.lines().map(|l| l.trim_end().chars().count()).max();
    assert!(widest < Some(120), "{plain}");
}

#[test]
fn the_exit_code_tells_the_outcome() {
    let scene = tempfile::tempdir().unwrap();
    // Classic, and the init container needs what comes only after it.
    let more = "--mode classic --order istio --until ready --timeout 5s";
    let (code, text) = sh(&command_line(scene.path(), more));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("not ready: Init:"), "{text}");
    let (code, text) = sh(&command_line(scene.path(), "--until never"));
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("neither ready nor complete nor a time such as 30s"),
        "{text}"
    );
}
