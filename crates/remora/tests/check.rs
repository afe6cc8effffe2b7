//! `remora check` through the real binary: every format and flag, success and failure.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a failed test")]

mod common;

use common::{Outcome, Scene, run};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The broken pods of the examples.
const EXAMPLES: [(&str, &str); 7] = [
    (
        "app-before-proxy.yaml",
        include_str!("../../../examples/broken/app-before-proxy.yaml"),
    ),
    (
        "cni-init-without-network.yaml",
        include_str!("../../../examples/broken/cni-init-without-network.yaml"),
    ),
    (
        "hold-does-not-help-init-containers.yaml",
        include_str!("../../../examples/broken/hold-does-not-help-init-containers.yaml"),
    ),
    (
        "job-that-never-ends.yaml",
        include_str!("../../../examples/broken/job-that-never-ends.yaml"),
    ),
    (
        "otel-init-after-istio-init.yaml",
        include_str!("../../../examples/broken/otel-init-after-istio-init.yaml"),
    ),
    (
        "poststart-deadlock.yaml",
        include_str!("../../../examples/broken/poststart-deadlock.yaml"),
    ),
    (
        "wrong-port-excluded.yaml",
        include_str!("../../../examples/broken/wrong-port-excluded.yaml"),
    ),
];

const RAW: &str = "\
# the shop
apiVersion: v1
kind: Service
metadata: {name: web}   # stays as it is
spec: {ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels: {app: web}
    spec:
      initContainers:
      - name: migrate
        image: registry.example/web:1
        command: [flyway, migrate]
      containers:
      - name: web
        image: registry.example/web:1
";

const MODES: [&str; 8] = [
    "none",
    "classic",
    "classic-hold",
    "cni",
    "cni-hold",
    "native",
    "native-cni",
    "ambient",
];

fn examples() -> Scene {
    Scene::new(&EXAMPLES)
}

fn raw() -> Scene {
    Scene::new(&[("web.yaml", RAW)])
}

fn check(scene: &Scene, arguments: &[&str]) -> Outcome {
    let mut all = vec!["check"];
    all.extend_from_slice(arguments);
    scene.remora(&all)
}

fn json(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|e| panic!("{e}: {}", outcome.shown()))
}

/// Codes of a severity in a JSON report, with their lines.
fn codes(report: &Value, severity: &str) -> Vec<String> {
    let pods = report["pods"].as_array().unwrap();
    pods.iter()
        .flat_map(|p| p["findings"].as_array().unwrap())
        .filter(|f| f["severity"] == severity)
        .map(|f| format!("{}:{}", f["code"].as_str().unwrap(), f["line"]))
        .collect()
}

#[test]
fn text_draws_and_explains() {
    let outcome = check(&examples(), &["-f", "otel-init-after-istio-init.yaml"]);
    insta::assert_snapshot!(outcome.shown());
}

#[test]
fn text_of_all_examples_fits_a_terminal() {
    for mode in [&[][..], &["--mode", "cni"], &["--inject"]] {
        let mut arguments = vec!["-f", ".", "-v"];
        arguments.extend_from_slice(mode);
        let outcome = check(&examples(), &arguments);
        for line in outcome.stdout.lines() {
            assert!(line.chars().count() <= 80, "{mode:?}: {line}");
        }
    }
}

#[test]
fn verbose_draws_clean_pods_and_shows_notes() {
    insta::assert_snapshot!(check(&raw(), &["-f", "web.yaml", "--mode", "classic-hold", "-v"]).shown());
}

#[test]
fn a_clean_pod_is_one_line() {
    insta::assert_snapshot!(check(&raw(), &["-f", "web.yaml", "--mode", "native"]).shown(), @r#"
    exit code: 0
    ----- stdout -----
    ok Deployment "shop/web" (istio native)
    1 pod checked: nothing wrong
    ----- stderr -----
    "#);
}

#[test]
fn a_pod_without_mesh_gets_a_hint() {
    insta::assert_snapshot!(check(&raw(), &["-f", "web.yaml"]).shown(), @r#"
    exit code: 0
    ----- stdout -----
    ok Deployment "shop/web" (no mesh)
    1 pod checked: nothing wrong
    ----- stderr -----
    note: no pod is in a mesh; --inject checks what an injection makes of them, --mode what a mesh would
    "#);
}

#[test]
fn colours_are_for_terminals_and_never_for_files() {
    let scene = examples();
    let mut command = scene.command(&common::binary(), &["check", "-f", "app-before-proxy.yaml"]);
    command.env("CLICOLOR_FORCE", "1");
    assert!(run(command, "").stdout.contains("\u{1b}["));
    let mut command = scene.command(
        &common::binary(),
        &["check", "-f", "app-before-proxy.yaml", "-o", "out.txt"],
    );
    command.env("CLICOLOR_FORCE", "1");
    assert_eq!(run(command, "").stdout, "");
    let plain = check(&scene, &["-f", "app-before-proxy.yaml"]);
    assert_eq!(scene.read("out.txt"), plain.stdout);
}

#[test]
fn json_says_everything() {
    let outcome = check(
        &examples(),
        &["-f", "poststart-deadlock.yaml", "--format", "json"],
    );
    let pretty = serde_json::to_string_pretty(&json(&outcome)).unwrap();
    insta::assert_snapshot!(pretty);
    assert_eq!(outcome.code, Some(1));
}

#[test]
fn json_of_several_pods_is_one_document() {
    let outcome = check(&examples(), &["-f", ".", "--format", "json"]);
    let report = json(&outcome);
    assert_eq!(report["pods"].as_array().unwrap().len(), EXAMPLES.len());
    assert_eq!(report["summary"]["pods"], EXAMPLES.len());
    let errors = codes(&report, "error");
    assert_eq!(report["summary"]["errors"], errors.len());
}

#[test]
fn sarif_has_rules_and_places() {
    let scene = examples();
    let outcome = check(&scene, &["-f", ".", "--format", "sarif"]);
    let report = json(&outcome);
    assert!(valid_results(&scene, &report).len() >= EXAMPLES.len());
    assert_eq!(report["runs"][0]["invocations"][0]["executionSuccessful"], true);
}

/// Its results, each of which has a rule and a place with the line that is there.
fn valid_results<'a>(scene: &Scene, report: &'a Value) -> &'a [Value] {
    assert_eq!(report["version"], "2.1.0");
    let run = &report["runs"][0];
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    for rule in rules {
        assert!(rule["id"].as_str().unwrap().starts_with("RM"));
        assert!(rule["help"]["text"].as_str().unwrap().len() > 40);
        assert!(rule["help"]["markdown"].is_string() && rule["shortDescription"]["text"].is_string());
    }
    let results = run["results"].as_array().unwrap();
    for result in results {
        let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
        assert_eq!(rules[index]["id"], result["ruleId"]);
        assert!(["error", "warning", "note"].contains(&result["level"].as_str().unwrap()));
        let place = &result["locations"][0]["physicalLocation"];
        let file = place["artifactLocation"]["uri"].as_str().unwrap();
        let region = &place["region"];
        let line = usize::try_from(region["startLine"].as_u64().unwrap()).unwrap();
        let text = scene.read(file).lines().nth(line - 1).unwrap().to_owned();
        assert_eq!(region["snippet"]["text"], text);
        assert!(region["startColumn"].as_u64() < region["endColumn"].as_u64());
    }
    results
}

/// A policy with a mistake and a limit of the proxy, one that is enforced as written, and one in a list.
const POLICIES: &str = "\
# who may call the web
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: web, namespace: shop}
spec:
  rules:
  - from:
    - source:
        principal: [cluster.local/ns/shop/sa/web]
  - to:
    - operation:
        methods: [GET]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
apiVersion: v1
kind: List
items:
- apiVersion: security.istio.io/v1
  kind: PeerAuthentication
  metadata: {name: lax, namespace: shop}
  spec:
    mtls:
      mode: DISABLE
";

fn policies(format: &str, more: &[&str]) -> (Scene, Outcome) {
    let scene = Scene::new(&[("policies.yaml", POLICIES)]);
    let arguments = [&["-f", "policies.yaml", "--format", format], more].concat();
    let outcome = check(&scene, &arguments);
    (scene, outcome)
}

#[test]
fn policies_are_told_like_pods() {
    insta::assert_snapshot!(policies("text", &[]).1.shown());
    let (_, outcome) = policies("json", &[]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(1), ""));
    let report = json(&outcome);
    assert_eq!(report["pods"], serde_json::json!([]));
    insta::assert_snapshot!("policies_as_json", format!("{:#}", report));
}

#[test]
fn findings_about_policies_are_results_of_sarif() {
    let (scene, outcome) = policies("sarif", &[]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(1), ""));
    let report = json(&outcome);
    let told: Vec<_> = valid_results(&scene, &report)
        .iter()
        .map(|result| {
            let place = &result["locations"][0];
            (
                result["ruleId"].as_str().unwrap(),
                result["level"].as_str().unwrap(),
                place["physicalLocation"]["region"]["startLine"].as_u64().unwrap(),
                place["logicalLocations"][0]["fullyQualifiedName"]
                    .as_str()
                    .unwrap(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("RM025", "error", 9, "/spec/rules/0/from/0/source/principal"),
            ("RM026", "warning", 12, "/spec/rules/1/to/0/operation/methods"),
            ("RM026", "warning", 27, "/items/0/spec/mtls/mode"),
        ]
    );
    let message = report["runs"][0]["results"][0]["message"]["text"]
        .as_str()
        .unwrap();
    assert!(
        message.starts_with(
            "AuthorizationPolicy \"shop/web\": spec.rules[0].from[0].source.principal: unknown field"
        ) && message.contains("\nFix: correct the name of the field"),
        "{message}"
    );
    let mut prints: Vec<_> = report["runs"][0]["results"].as_array().unwrap().iter().collect();
    prints.dedup_by_key(|result| result["partialFingerprints"].to_string());
    assert_eq!(prints.len(), 3, "each has a fingerprint of its own");
}

#[test]
fn a_page_has_a_section_for_policies() {
    let (_, outcome) = policies("html", &[]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(1), ""));
    let page = &outcome.stdout;
    let start = page.find("<section><h2>Policies</h2>").unwrap();
    let section = &page[start..];
    for part in [
        "AuthorizationPolicy &quot;shop/web&quot;",
        "policies.yaml:9:",
        "error RM025: policy that is not understood",
        "spec.rules[0].from[0].source.principal: unknown field",
        "the rule allows nothing",
        "correct the name of the field, or remove it",
        "PeerAuthentication &quot;shop/strict&quot; <span class=\"ok\">",
        "write PERMISSIVE",
    ] {
        assert!(section.contains(part), "{part}: {section}");
    }
    assert!(page.contains("3 policies checked: 1 error, 2 warnings"), "{page}");
    // Pods alone need no such section, and hostile names stay text.
    assert!(
        !check(&examples(), &["-f", ".", "--format", "html"])
            .stdout
            .contains("<h2>Policies")
    );
    let hostile = POLICIES.replace("principal:", "'<script>\u{202e}':");
    let scene = Scene::new(&[("p.yaml", &hostile)]);
    for format in ["html", "text"] {
        let told = check(&scene, &["-f", "p.yaml", "--format", format]).stdout;
        assert!(!told.contains('\u{202e}'), "{told}");
        assert!(format == "text" || !told.contains("<script"), "{told}");
    }
}

/// Whatever the format, the severity decides about the exit code, and nothing is lost.
#[test]
fn policies_count_in_exit_codes() {
    let warning = POLICIES.replace("principal:", "principals:");
    let clean = warning
        .replace("methods: [GET]", "ports: ['80']")
        .replace("DISABLE", "STRICT");
    for (text, expected) in [
        (POLICIES, [1, 1, 0]),
        (warning.as_str(), [0, 1, 0]),
        (clean.as_str(), [0, 0, 0]),
    ] {
        let scene = Scene::new(&[("p.yaml", text)]);
        for format in ["text", "json", "sarif", "html", "svg"] {
            let codes = ["error", "warning", "never"].map(|from| {
                let arguments = ["-f", "p.yaml", "--format", format, "--fail-on", from];
                check(&scene, &arguments).code.unwrap()
            });
            assert_eq!(codes, expected, "{format}");
        }
    }
    // There is nothing to draw and nothing to mend, so standard error has it.
    for arguments in [["--format", "svg"].as_slice(), &["--fix"]] {
        let scene = Scene::new(&[("p.yaml", POLICIES)]);
        let outcome = check(&scene, &[&["-f", "p.yaml"], arguments].concat());
        assert_eq!(outcome.code, Some(1), "{arguments:?}");
        let told = ["p.yaml:9:", "RM025", "p.yaml:12:", "RM026", "p.yaml:27:"];
        assert!(
            told.iter().all(|part| outcome.stderr.contains(part)),
            "{}",
            outcome.stderr
        );
    }
}

/// Names, images and commands that want out of their quotes.
const HOSTILE: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: "</title><script>alert(1)</script>", annotations: {sidecar.istio.io/status: "{}"}}
spec:
  initContainers:
  - {name: istio-init, image: x}
  - name: "\"><img src=x onerror='alert(2)'>\e[31m\u202Egnol"
    image: "<b>"
    command: [curl, "http://evil.example:80/<script>"]
  containers:
  - {name: "a&b<c>", image: x}
  - {name: istio-proxy, image: x}
"#;

#[test]
fn hostile_names_stay_text() {
    let scene = Scene::new(&[("<x>&\"'.yaml", HOSTILE)]);
    for format in ["html", "svg"] {
        let outcome = check(&scene, &["-f", "<x>&\"'.yaml", "--format", format]);
        let out = &outcome.stdout;
        for bad in ["<script", "<img", "<b>", "<c>", "<x>", "\u{1b}", "\u{202e}"] {
            assert!(!out.contains(bad), "{format}: {bad:?} got out");
        }
        assert!(out.contains("a&amp;b&lt;c&gt;"));
        if format == "svg" {
            assert_well_formed(out);
        }
    }
    let text = check(&scene, &["-f", "<x>&\"'.yaml"]).stdout;
    assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
    let sarif = check(&scene, &["-f", "<x>&\"'.yaml", "--format", "sarif"]);
    let uri = &json(&sarif)["runs"][0]["results"][0]["locations"][0]["physicalLocation"];
    assert_eq!(uri["artifactLocation"]["uri"], "%3Cx%3E%26%22%27.yaml");
}

/// Every element is closed, in order.
fn assert_well_formed(xml: &str) {
    let mut open = Vec::new();
    for piece in xml.split('<').skip(1) {
        let tag = piece.split('>').next().unwrap();
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn a_page_needs_nothing_from_elsewhere() {
    let outcome = check(&examples(), &["-f", ".", "--format", "html"]);
    let page = &outcome.stdout;
    for bad in [
        "src=",
        "@import",
        "<script",
        "<link",
        "url(http",
        "url(//",
        "href=\"http",
    ] {
        assert!(!page.contains(bad), "{bad}");
    }
    // What a pod names is text; markup has no address.
    for piece in page.split('<').skip(1) {
        let tag = piece.split('>').next().unwrap();
        assert!(!tag.contains("http://") && !tag.contains("https://"), "{tag}");
    }
    assert!(page.contains("prefers-color-scheme:dark"));
    assert!(page.contains("tabindex=\"0\""));
    for (name, _) in EXAMPLES {
        assert!(page.contains(name), "{name}");
    }
    assert!(page.contains("After the best fixes") && page.contains("class=\"add\""));
    assert_eq!(outcome.code, Some(1));
}

#[test]
fn svg_is_one_well_formed_file() {
    let outcome = check(&examples(), &["-f", ".", "--format", "svg"]);
    assert!(
        outcome
            .stdout
            .starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"")
    );
    assert_eq!(outcome.stdout.matches("http").count(), 1);
    assert_well_formed(&outcome.stdout);
    for state in ["seg broken", "seg proxied", "seg runs", "seg waits", "seg hook"] {
        assert!(outcome.stdout.contains(state), "{state}");
    }
}

/// After `--fix`, no error is left that a fix exists for, and fixing again changes nothing.
#[test]
fn fixed_manifests_check_clean() {
    let scene = Scene::new(
        &EXAMPLES
            .into_iter()
            .chain([("raw.yaml", RAW)])
            .collect::<Vec<_>>(),
    );
    let mut mended = 0;
    for mode in [None].into_iter().chain(MODES.map(Some)) {
        let mode: Vec<&str> = mode.map_or_else(Vec::new, |m| vec!["--mode", m]);
        let with = |more: &[&'static str]| {
            let mut all = vec!["check", "-f", "-"];
            all.extend(&mode);
            all.extend(more);
            all
        };
        for (name, text) in EXAMPLES.into_iter().chain([("raw.yaml", RAW)]) {
            let fixed = scene.remora_with(&with(&["--fix"]), text);
            let report = scene.remora_with(&with(&["--format", "json"]), &fixed.stdout);
            let left = json(&report);
            for pod in left["pods"].as_array().unwrap() {
                for finding in pod["findings"].as_array().unwrap() {
                    let fixable = !finding["fixes"].as_array().unwrap().is_empty();
                    assert!(
                        finding["severity"] != "error" || !fixable,
                        "{name} {mode:?}: {finding}"
                    );
                }
            }
            let again = scene.remora_with(&with(&["--fix"]), &fixed.stdout);
            assert_eq!(again.stdout, fixed.stdout, "{name} {mode:?}");
            mended += usize::from(fixed.stderr.contains("note: "));
        }
    }
    assert!(mended > 20, "only {mended} were mended");
}

#[test]
fn fixing_leaves_everything_else_as_it_is_written() {
    let outcome = check(&raw(), &["-f", "web.yaml", "--mode", "cni", "--fix"]);
    let service = RAW.split("---").next().unwrap();
    assert!(
        outcome.stdout.starts_with(&format!("{service}---\n")),
        "{}",
        outcome.stdout
    );
    assert!(
        outcome
            .stdout
            .contains("sidecar.istio.io/nativeSidecar: \"true\"")
    );
    let healthy = check(&raw(), &["-f", "web.yaml", "--fix"]);
    assert_eq!(healthy.stdout, format!("{RAW}---\n"));
}

#[test]
fn fix_diff_shows_the_change() {
    insta::assert_snapshot!(check(&raw(), &["-f", "web.yaml", "--mode", "cni", "--fix=diff"]).shown());
    let scene = raw();
    check(
        &scene,
        &["-f", "web.yaml", "--mode", "cni", "--fix=diff", "-o", "d.txt"],
    );
    assert!(scene.read("d.txt").contains("+   annotations:"));
}

#[test]
fn what_cannot_be_fixed_is_told() {
    // Taking a user away could break the application, so that is not done for a warning.
    let pod = format!("{RAW}        securityContext: {{runAsUser: 1337}}\n");
    let scene = Scene::new(&[("web.yaml", &pod)]);
    let outcome = check(
        &scene,
        &[
            "-f",
            "web.yaml",
            "--mode",
            "native",
            "--fix",
            "--fail-on",
            "warning",
        ],
    );
    assert_eq!((outcome.code, outcome.stdout), (Some(1), format!("{pod}---\n")));
    insta::assert_snapshot!(outcome.stderr);
}

#[test]
fn injection_first() {
    let scene = Scene::new(&[("web.yaml", RAW), ("cni.yaml", "pilot: {cni: {enabled: true}}\n")]);
    let report = |flags: &[&str]| {
        let mut all = vec!["-f", "web.yaml", "--inject", "--format", "json"];
        all.extend_from_slice(flags);
        let report = json(&check(&scene, &all));
        let mode = report["pods"][0]["mode"].as_str().unwrap().to_owned();
        (mode, codes(&report, "error"), codes(&report, "warning"))
    };
    let none: Vec<String> = Vec::new();
    assert_eq!(report(&[]), ("native".to_owned(), none.clone(), none.clone()));
    let (mode, errors, _) = report(&["--native", "off"]);
    assert_eq!((mode.as_str(), errors), ("classic+hold", none.clone()));
    // Lines are those of the user's file, although injection moved the containers.
    let (mode, errors, warnings) = report(&["--native", "off", "--order", "istio"]);
    assert_eq!(
        (mode.as_str(), errors, warnings),
        ("classic", none, vec!["RM002:21".to_owned()])
    );
    let (mode, errors, _) = report(&["--native", "off", "--valuesFile", "cni.yaml"]);
    assert_eq!((mode.as_str(), errors), ("cni+hold", vec!["RM001:17".to_owned()]));
    let (mode, ..) = report(&["--kubelet", "1.30"]);
    assert_eq!(mode, "classic+hold");
}

#[test]
fn every_mode_can_be_assumed() {
    let scene = raw();
    let mut table = String::new();
    for mode in MODES {
        let outcome = check(&scene, &["-f", "web.yaml", "--mode", mode, "--format", "json"]);
        let report = json(&outcome);
        let found = [
            codes(&report, "error"),
            codes(&report, "warning"),
            codes(&report, "note"),
        ];
        let line = format!(
            "{mode}: {} {found:?} exit {:?}\n",
            report["pods"][0]["mode"], outcome.code
        );
        table.push_str(&line);
    }
    insta::assert_snapshot!(table);
}

const STATED: &str = "\
processes:
  istio-proxy: {ready: 5s}
  orders: {lives: 3s, exit: 1, needsNetwork: true}
do:
- {on: orders.start, after: 30s, act: delete}
until: 60s
";

#[test]
fn assumptions_are_played() {
    let scene = Scene::new(&[EXAMPLES[0], ("slow.yaml", STATED)]);
    let outcome = check(&scene, &["-f", "app-before-proxy.yaml", "--assume", "slow.yaml"]);
    insta::assert_snapshot!(outcome.shown());
    let traced = check(
        &scene,
        &[
            "-f",
            "app-before-proxy.yaml",
            "--assume",
            "slow.yaml",
            "--format",
            "json",
        ],
    );
    let events = &json(&traced)["pods"][0]["simulation"]["events"];
    let at = |name: &str| {
        let found = events.as_array().unwrap().iter().find(|e| e["event"] == name);
        found.unwrap_or_else(|| panic!("{name}"))["at"].as_u64().unwrap()
    };
    let wait = at("istio-proxy.proxy-ready") - at("istio-proxy.start");
    assert_eq!(wait, 5000);
}

#[test]
fn assumptions_may_be_json_and_may_be_wrong() {
    let files = [
        EXAMPLES[0],
        (
            "ok.json",
            r#"{"processes": {"orders": {"lives": 100}}, "until": "5s"}"#,
        ),
        ("nobody.yaml", "processes: {nobody: {lives: 1s}}"),
        ("key.yaml", "processes: {orders: {live: 1s}}"),
        ("time.yaml", "until: soon"),
        ("list.yaml", "[1]"),
        ("empty.yaml", ""),
    ];
    let scene = Scene::new(&files);
    let mut told = String::new();
    for (file, _) in &files[1..] {
        let outcome = check(
            &scene,
            &[
                "-f",
                "app-before-proxy.yaml",
                "--assume",
                file,
                "--format",
                "svg",
                "-o",
                "x.svg",
            ],
        );
        let error = outcome.stderr.trim_end();
        writeln!(told, "{file}: {:?} {error}", outcome.code).unwrap();
    }
    insta::assert_snapshot!(told);
}

#[test]
fn explanations() {
    let scene = Scene::new(&[]);
    insta::assert_snapshot!("explain", check(&scene, &["--explain", "rm001"]).shown());
    let unknown = check(&scene, &["--explain", "RM999"]);
    assert_eq!(unknown.code, Some(2));
    assert!(
        unknown
            .stderr
            .starts_with("error: there is no code \"RM999\"; there are\n  RM001 "),
        "{}",
        unknown.stderr
    );
}

#[test]
fn exit_codes() {
    let scene = Scene::new(&[
        EXAMPLES[0],
        EXAMPLES[4],
        ("web.yaml", RAW),
        ("bad.yaml", "a: [1\n"),
        (
            "headless.yaml",
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: {}\n",
        ),
        (
            "none.yaml",
            "apiVersion: v1\nkind: Service\nmetadata: {name: x}\n",
        ),
    ]);
    let cases: &[(&[&str], i32)] = &[
        (&["-f", "web.yaml"], 0),
        (&["-f", "none.yaml"], 0),
        (&["-f", "otel-init-after-istio-init.yaml"], 1),
        (
            &["-f", "otel-init-after-istio-init.yaml", "--fail-on", "never"],
            0,
        ),
        (&["-f", "app-before-proxy.yaml"], 0),
        (&["-f", "app-before-proxy.yaml", "--fail-on", "warning"], 1),
        (
            &["-f", "app-before-proxy.yaml", "--fail-on", "warning", "--fix"],
            0,
        ),
        (&["-f", "bad.yaml"], 2),
        (&["-f", "bad.yaml", "-f", "otel-init-after-istio-init.yaml"], 2),
        (&["-f", "headless.yaml"], 2),
        (&["-f", "headless.yaml", "--inject"], 2),
        (&["-f", "missing.yaml"], 2),
        (&["-f", "web.yaml", "--kubelet", "new"], 2),
        (&["-f", "web.yaml", "--mode", "fast"], 2),
        (&["-f", "web.yaml", "--native", "off"], 2),
        (&["-f", "web.yaml", "--fix", "--format", "json"], 2),
        (&["-f", "web.yaml", "--assume", "missing.yaml"], 2),
        (&["-f", "web.yaml", "-o", "no/such/place"], 2),
        (&[], 2),
    ];
    for (arguments, wanted) in cases {
        let outcome = check(&scene, arguments);
        assert_eq!(outcome.code, Some(*wanted), "{arguments:?}: {}", outcome.shown());
        if *wanted == 2 {
            assert!(
                outcome.stderr.contains("error"),
                "{arguments:?}: {}",
                outcome.stderr
            );
        }
    }
}

#[test]
fn every_error_of_every_file_is_reported_and_the_rest_is_checked() {
    let scene = Scene::new(&[
        ("d/a.yaml", "a: [1\n---\nkind: Pod\nmetadata: {name: p}\n"),
        ("d/b.yaml", RAW),
        ("d/deep/c.yaml", "x: 1\nx: 2\n"),
        ("d/d.yaml", "\u{feff}a: b"),
    ]);
    std::fs::write(scene.path("d/e.yaml"), [0xff, 0xfe]).unwrap();
    insta::assert_snapshot!(check(&scene, &["-R", "-f", "d"]).shown());
    let fixed = check(&scene, &["-R", "-f", "d", "--fix"]);
    assert_eq!((fixed.code, fixed.stdout.as_str()), (Some(2), ""));
    let sarif = json(&check(&scene, &["-R", "-f", "d", "--format", "sarif"]));
    assert_eq!(sarif["runs"][0]["invocations"][0]["executionSuccessful"], false);
}

#[test]
fn lists_and_many_documents_keep_their_lines() {
    let item = |name: &str| {
        format!(
            "- apiVersion: v1\n  kind: Pod\n  metadata: {{name: {name}}}\n  spec:\n    initContainers:\n    - name: fetch\n      command: [curl, x]\n    containers:\n    - name: c\n"
        )
    };
    let list = format!("kind: List\napiVersion: v1\nitems:\n{}{}", item("a"), item("b"));
    let scene = Scene::new(&[("list.yaml", &format!("# one\n---\n{list}---\n{list}"))]);
    let report = json(&check(
        &scene,
        &["-f", "list.yaml", "--mode", "cni", "--format", "json"],
    ));
    let lines: Vec<u64> = report["pods"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["findings"][0]["line"].as_u64().unwrap())
        .collect();
    assert_eq!(lines, [11, 20, 33, 42]);
    let path = &report["pods"][1]["findings"][0]["path"];
    assert_eq!(path, "/items/1/spec/initContainers/0");
    let text = scene.read("list.yaml");
    for line in lines {
        let line = text.lines().nth(usize::try_from(line).unwrap() - 1).unwrap();
        assert_eq!(line.trim(), "- name: fetch");
    }
}

#[test]
fn a_document_in_one_line_shows_the_part_that_matters() {
    let pod = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","labels":{"app":"a-long-name-for-an-application"}},"spec":{"initContainers":[{"name":"fetch","image":"x","command":["curl","http://a.b:1"]}],"containers":[{"name":"app","image":"x"}]}}"#;
    let outcome = Scene::new(&[]).remora_with(&["check", "-f", "-", "--mode", "cni-hold"], pod);
    let mut lines = outcome.stdout.lines().skip_while(|l| !l.starts_with("1 | "));
    let source = lines.next().unwrap();
    let carets = lines.next().unwrap();
    assert!(source.chars().count() <= 80, "{source}");
    let at = carets.find('^').unwrap();
    assert!(
        source[at..].starts_with("{\"name\":\"fetch\""),
        "{source}\n{carets}"
    );
}

#[test]
fn warnings_of_the_injection_are_told() {
    let app = RAW.replace(
        "labels: {app: web}",
        "labels: {app: web}\n      annotations: {instrumentation.opentelemetry.io/inject-java: \"true\"}",
    );
    let scene = Scene::new(&[("web.yaml", &app)]);
    let outcome = check(&scene, &["-f", "web.yaml", "--inject"]);
    assert!(
        outcome.stderr.starts_with("warning: web.yaml:"),
        "{}",
        outcome.shown()
    );
}

#[test]
fn help() {
    insta::assert_snapshot!(check(&Scene::new(&[]), &["--help"]).shown());
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What the tool prints, run at the top of the repository.
fn at_the_top(arguments: &[&str]) -> String {
    let scene = Scene::new(&[]);
    let mut command = scene.command(&common::binary(), arguments);
    command.current_dir(repository());
    run(command, "").stdout
}

/// The README shows what the tool really prints. `REMORA_BLESS=1` makes it so.
#[test]
fn the_readme_shows_real_output() {
    let command = "check -f examples/broken/otel-init-after-istio-init.yaml";
    let words: Vec<&str> = command.split(' ').collect();
    let out = at_the_top(&words);
    let path = repository().join("README.md");
    let readme = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = readme.split_once(&format!("$ remora {command}\n")).unwrap();
    let (shown, after) = rest.split_once("\n```").unwrap();
    if std::env::var_os("REMORA_BLESS").is_some() {
        let text = format!("{before}$ remora {command}\n{}\n```{after}", out.trim_end());
        std::fs::write(&path, text).unwrap();
    } else {
        assert_eq!(shown, out.trim_end());
    }
}

/// Pictures in the docs are the tool's own. `REMORA_BLESS=1` makes them anew.
#[test]
fn pictures_are_the_tools_own() {
    let otel = "examples/broken/otel-init-after-istio-init.yaml";
    let fixed = at_the_top(&["check", "-f", otel, "--fix"]);
    let scene = Scene::new(&[]);
    let after = scene.remora_with(&["check", "-f", "-", "--format", "svg"], &fixed);
    let pictures = [
        (
            "otel-broken.svg",
            at_the_top(&["check", "-f", otel, "--format", "svg"]),
        ),
        ("otel-fixed.svg", after.stdout),
    ];
    for (name, picture) in pictures {
        let path = repository().join("docs/images").join(name);
        if std::env::var_os("REMORA_BLESS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &picture).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap();
        assert!(
            kept == picture,
            "docs/images/{name} is not what the tool draws; REMORA_BLESS=1 renews it"
        );
    }
}

/// The table beside the examples says what check says.
#[test]
fn the_examples_are_described() {
    let folder = repository().join("examples/broken");
    let readme = std::fs::read_to_string(folder.join("README.md")).unwrap();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name == "README.md" {
            continue;
        }
        let path = format!("examples/broken/{name}");
        let report: Value =
            serde_json::from_str(&at_the_top(&["check", "-f", &path, "--format", "json"])).unwrap();
        let severities = ["error", "warning"].map(|s| codes(&report, s));
        let found: Vec<&str> = severities
            .iter()
            .flatten()
            .map(|c| c.split(':').next().unwrap())
            .collect();
        let row = format!("| [{name}]({name}) | {} |", found.join(", "));
        assert!(readme.contains(&row), "examples/broken/README.md misses:\n{row}");
    }
}
