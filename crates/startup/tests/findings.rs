//! The cases people write about, as documents, and what the check says to them.

use remora_startup::findings::{Finding, Options, Report, Severity, apply, check, fix};
use remora_startup::mesh::Mode;
use serde_json::{Value, json};

fn proxy(more: &Value) -> Value {
    let mut out = json!({"name": "istio-proxy", "image": "proxyv2",
        "readinessProbe": {"httpGet": {"path": "/healthz/ready", "port": 15021}},
        "securityContext": {"runAsUser": 1337, "runAsGroup": 1337}});
    for (key, value) in more.as_object().into_iter().flatten() {
        out[key] = value.clone();
    }
    out
}

fn istio_init() -> Value {
    init_with(&[])
}

/// Istio's init container, with further flags.
fn init_with(flags: &[&str]) -> Value {
    let usual = "istio-iptables -p 15001 -z 15006 -u 1337 -m REDIRECT -i * -b * -d 15090,15021,15020";
    let args: Vec<&str> = usual.split(' ').chain(flags.iter().copied()).collect();
    json!({"name": "istio-init", "image": "proxyv2", "args": args})
}

fn app() -> Value {
    json!({"name": "app", "image": "my-python-app:latest"})
}

fn pod(inits: &Value, mains: &Value) -> Value {
    json!({"kind": "Pod", "metadata": {"name": "my-app"}, "spec": {"initContainers": inits, "containers": mains}})
}

fn downloading_agent() -> Value {
    json!({"name": "opentelemetry-auto-instrumentation", "image": "my/otel-agent",
        "command": ["sh", "-c", "curl -fsSL https://registry.example.com:8443/agent.tgz | tar xz -C /otel"]})
}

fn codes(report: &Report) -> Vec<&'static str> {
    report.findings.iter().map(|f| f.rule.code).collect()
}

fn find<'a>(report: &'a Report, code: &str, container: &str) -> Option<&'a Finding> {
    report
        .findings
        .iter()
        .find(|f| f.rule.code == code && f.container == container)
}

fn checked(document: &Value) -> Report {
    check(document, &Options::default())
}

#[test]
fn otel_agent_that_downloads_after_istio_init_cannot_start() {
    let broken = pod(
        &json!([istio_init(), downloading_agent()]),
        &json!([app(), proxy(&json!({}))]),
    );
    let report = checked(&broken);
    let finding = find(&report, "RM001", "opentelemetry-auto-instrumentation").expect("it is found");
    assert_eq!(finding.severity, Severity::Error);
    assert_eq!(finding.path, "/spec/initContainers/1");
    assert!(
        finding.cause.contains("istio-init") && finding.cause.contains("registry.example.com"),
        "{}",
        finding.cause
    );
    assert!(
        finding.consequence.contains("Init:CrashLoopBackOff"),
        "{}",
        finding.consequence
    );
    let titles: Vec<&str> = finding.fixes.iter().map(|f| f.title.as_str()).collect();
    assert_eq!(
        titles,
        [
            "make istio-proxy a native sidecar",
            "move opentelemetry-auto-instrumentation before istio-init",
            "leave outbound port 8443 alone",
            "run opentelemetry-auto-instrumentation as user 1337",
        ]
    );
    let cycle = finding.cycle.as_ref().expect("the deadlock is shown");
    let last = cycle.edges.last().expect("it has edges");
    assert_eq!(cycle.edges[0].from, last.to, "it closes");
}

#[test]
fn what_the_pod_declares_counts_more_than_what_can_be_inferred() {
    let copying =
        json!({"name": "agent", "image": "vendor/agent", "command": ["cp", "-r", "/agent", "/otel"]});
    let mut document = pod(
        &json!([istio_init(), copying]),
        &json!([proxy(&json!({})), app()]),
    );
    assert!(find(&checked(&document), "RM001", "agent").is_none());
    document["metadata"]["annotations"] = json!({"remora.dev/network.agent": "mesh"});
    assert!(find(&checked(&document), "RM001", "agent").is_some());
    document["spec"]["initContainers"][1]["command"] = json!(["curl", "http://registry.example.com"]);
    document["metadata"]["annotations"] = json!({"remora.dev/network.agent": "none"});
    assert!(find(&checked(&document), "RM001", "agent").is_none());
}

#[test]
fn every_fix_of_the_otel_case_mends_it() {
    let broken = pod(
        &json!([istio_init(), downloading_agent()]),
        &json!([app(), proxy(&json!({}))]),
    );
    let fixes = find(&checked(&broken), "RM001", "opentelemetry-auto-instrumentation")
        .expect("found")
        .fixes
        .clone();
    for one in fixes {
        let mut mended = broken.clone();
        apply(&one, &mut mended).expect("it applies");
        let report = checked(&mended);
        assert!(
            find(&report, "RM001", "opentelemetry-auto-instrumentation").is_none(),
            "{}",
            one.title
        );
    }
}

#[test]
fn stock_otel_agent_only_copies_and_is_left_alone() {
    let copies = json!({"name": "opentelemetry-auto-instrumentation-python",
        "image": "ghcr.io/open-telemetry/opentelemetry-operator/autoinstrumentation-python:0.50b0",
        "command": ["cp", "-r", "/autoinstrumentation/.", "/otel-auto-instrumentation-python"]});
    let report = checked(&pod(
        &json!([istio_init(), copies]),
        &json!([app(), proxy(&json!({}))]),
    ));
    assert!(find(&report, "RM001", "opentelemetry-auto-instrumentation-python").is_none());
}

#[test]
fn hold_helps_the_app_and_not_the_init_container() {
    let hold = proxy(&json!({"lifecycle": {"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}}));
    let report = checked(&pod(
        &json!([istio_init(), downloading_agent()]),
        &json!([hold, app()]),
    ));
    assert!(find(&report, "RM001", "opentelemetry-auto-instrumentation").is_some());
    assert!(find(&report, "RM002", "app").is_none());
    assert!(
        find(&report, "RM018", "istio-proxy").is_some(),
        "hold is only a delay"
    );
}

#[test]
fn the_cni_plugin_does_not_help_init_containers() {
    let validation = json!({"name": "istio-validation"});
    let report = checked(&pod(
        &json!([validation, downloading_agent()]),
        &json!([app(), proxy(&json!({}))]),
    ));
    let finding = find(&report, "RM001", "opentelemetry-auto-instrumentation").expect("found");
    assert!(finding.cause.contains("CNI"), "{}", finding.cause);
    assert!(
        finding.fixes.iter().all(|f| !f.title.contains("before")),
        "there is nothing to move it before"
    );
}

#[test]
fn app_that_starts_before_the_proxy_is_warned_about_until_it_is_held() {
    let broken = pod(&json!([istio_init()]), &json!([app(), proxy(&json!({}))]));
    let report = checked(&broken);
    let finding = find(&report, "RM002", "app").expect("found");
    assert_eq!(finding.severity, Severity::Warning);
    for one in &finding.fixes {
        let mut mended = broken.clone();
        apply(one, &mut mended).expect("it applies");
        assert!(find(&checked(&mended), "RM002", "app").is_none(), "{}", one.title);
    }
}

fn exporter() -> Value {
    json!({"name": "push", "command": ["push"],
        "env": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://10.96.3.4:4317"}]})
}

#[test]
fn excluded_ports_and_ranges_are_honoured() {
    let mut document = pod(&json!([exporter()]), &json!([app()]));
    // Before the pod is injected the annotations count.
    let options = Options {
        mode: Some(Mode::Cni),
        ..Options::default()
    };
    let is_cut_off = |document: &Value| find(&check(document, &options), "RM001", "push").is_some();
    assert!(is_cut_off(&document));
    for (key, value) in [
        ("excludeOutboundPorts", "4317,4318"),
        ("excludeOutboundIPRanges", "10.96.0.0/12"),
    ] {
        document["metadata"]["annotations"] = json!({format!("traffic.sidecar.istio.io/{key}"): value});
        assert!(!is_cut_off(&document), "{key}");
    }
    document["metadata"]["annotations"] = json!({"traffic.sidecar.istio.io/excludeOutboundPorts": "4318"});
    assert!(is_cut_off(&document), "another port does not help");
}

/// The rules of an injected pod are those of its init container: every spelling of a flag, and nothing else.
#[test]
fn the_flags_of_the_init_container_are_read_as_the_program_reads_them() {
    let cut_off = |flags: &[&str]| {
        let document = pod(
            &json!([init_with(flags), exporter()]),
            &json!([app(), proxy(&json!({}))]),
        );
        find(&checked(&document), "RM001", "push").is_some()
    };
    for (flags, expected) in [
        (&[][..], true),
        (&["-d", "15090,15021,15020,4317"], true),
        (&["--istio-local-exclude-ports", "15020,4317"], true),
        (&["--istio-local-exclude-ports=15020,4317"], true),
        (&["-o", "4317"], false),
        (&["-o4317"], false),
        (&["-o=4317"], false),
        (&["--istio-local-outbound-ports-exclude", "4317"], false),
        (&["--istio-local-outbound-ports-exclude=4000:5000"], false),
        (&["-i", "", "-q", "4317"], true),
        (&["-i", "", "-q", "4318"], false),
        (&["-i", "10.0.0.0/8"], true),
        (&["-i", "192.168.0.0/16"], false),
        (&["-x", "10.96.3.4/32"], false),
        // The program refuses an address without a prefix length; the flag excludes nothing.
        (&["-x", "10.96.3.4"], true),
        (&["-c", "eth0"], false),
        (&["-k", "tap0"], true),
        (&["-b", ""], true),
    ] {
        assert_eq!(cut_off(flags), expected, "{flags:?}");
    }
}

/// A flag that the program refuses is named. `capture explain` refuses it in the same words.
#[test]
fn options_that_cannot_be_used_are_errors() {
    for (flag, value, words) in [
        ("-x", "10.96.3.4", "has no prefix length"),
        ("-o", "eighty", "is not a port"),
        ("--unheard-of", "1", "unknown flag --unheard-of"),
    ] {
        let document = pod(
            &json!([init_with(&[flag, value])]),
            &json!([app(), proxy(&json!({}))]),
        );
        let report = checked(&document);
        let finding = find(&report, "RM027", "istio-init").expect(flag);
        assert_eq!(finding.severity, Severity::Error);
        assert!(finding.cause.contains(words), "{}", finding.cause);
    }
}

/// An annotation that was added after injection changes nothing: the rules are in the arguments.
#[test]
fn annotations_of_an_injected_pod_do_not_change_its_rules() {
    let mut document = pod(
        &json!([istio_init(), exporter()]),
        &json!([app(), proxy(&json!({}))]),
    );
    document["metadata"]["annotations"] = json!({"traffic.sidecar.istio.io/excludeOutboundPorts": "4317"});
    assert!(find(&checked(&document), "RM001", "push").is_some());
}

#[test]
fn reordered_before_istio_init_it_works_in_plaintext() {
    let report = checked(&pod(
        &json!([downloading_agent(), istio_init()]),
        &json!([app(), proxy(&json!({}))]),
    ));
    assert!(find(&report, "RM001", "opentelemetry-auto-instrumentation").is_none());
    let note = find(&report, "RM007", "opentelemetry-auto-instrumentation").expect("said as a note");
    assert_eq!(note.severity, Severity::Note);
}

#[test]
fn vault_agent_after_istio_init() {
    let vault = json!({"name": "vault-agent-init", "image": "hashicorp/vault:1.18",
        "env": [{"name": "VAULT_ADDR", "value": "https://vault.vault.svc:8200"}]});
    let report = checked(&pod(
        &json!([istio_init(), vault]),
        &json!([app(), proxy(&json!({}))]),
    ));
    let finding = find(&report, "RM001", "vault-agent-init").expect("found");
    assert_eq!(finding.severity, Severity::Error);
    assert!(finding.fixes.iter().any(|f| f.title.contains("8200")));
}

#[test]
fn migration_under_cni() {
    let migrate = json!({"name": "migrate", "image": "app", "command": ["python", "manage.py", "migrate"],
        "env": [{"name": "DATABASE_URL", "value": "postgres://u:p@db.prod:5432/app"}]});
    let document = json!({"kind": "Deployment", "spec": {"template": {"spec": {
        "initContainers": [migrate], "containers": [app()]}}}});
    let options = Options {
        mode: Some(Mode::Cni),
        ..Options::default()
    };
    let report = check(&document, &options);
    let finding = find(&report, "RM001", "migrate").expect("found");
    assert_eq!(
        (finding.severity, finding.path.as_str()),
        (Severity::Error, "/spec/template/spec/initContainers/0")
    );
    let fixed = fix(&document, &options);
    assert_eq!(
        fixed.document["spec"]["template"]["metadata"]["annotations"]["sidecar.istio.io/nativeSidecar"],
        "true"
    );
    assert!(find(&fixed.report, "RM001", "migrate").is_none());
}

#[test]
fn cloud_sql_proxy_as_native_sidecar() {
    let sql = |port: u16| {
        json!({"name": "cloud-sql-proxy", "image": "cloud-sql-proxy:2", "restartPolicy": "Always",
        "startupProbe": {"httpGet": {"path": "/startup", "port": port}}})
    };
    let report = checked(&pod(
        &json!([istio_init(), sql(9090)]),
        &json!([app(), proxy(&json!({}))]),
    ));
    let finding = find(&report, "RM003", "cloud-sql-proxy").expect("captured before the proxy");
    assert_eq!(
        (finding.severity, finding.path.as_str()),
        (Severity::Error, "/spec/initContainers/1/startupProbe")
    );
    let report = checked(&pod(
        &json!([sql(15020), istio_init()]),
        &json!([app(), proxy(&json!({}))]),
    ));
    assert!(
        find(&report, "RM003", "cloud-sql-proxy").is_some(),
        "rewritten to an agent that does not run"
    );
    let native = proxy(&json!({"restartPolicy": "Always",
        "startupProbe": {"httpGet": {"path": "/healthz/ready", "port": 15021}, "periodSeconds": 1}}));
    let report = checked(&pod(&json!([istio_init(), native, sql(9090)]), &json!([app()])));
    assert!(
        find(&report, "RM003", "cloud-sql-proxy").is_none(),
        "behind the native proxy it starts"
    );
}

#[test]
fn collector_sidecar_beside_a_classic_proxy() {
    let collector = json!({"name": "otc-container", "image": "otel/opentelemetry-collector", "restartPolicy": "Always",
        "startupProbe": {"httpGet": {"path": "/", "port": 13133}}});
    let broken = pod(
        &json!([istio_init(), collector]),
        &json!([app(), proxy(&json!({}))]),
    );
    assert!(find(&checked(&broken), "RM003", "otc-container").is_some());
    let fixed = fix(&broken, &Options::default());
    assert_eq!(
        fixed.report.worst().filter(|s| *s == Severity::Error),
        None,
        "{:?}",
        codes(&fixed.report)
    );
    let names: Vec<&Value> = fixed.document["spec"]["initContainers"]
        .as_array()
        .expect("list")
        .iter()
        .map(|c| &c["name"])
        .collect();
    assert_eq!(names, ["istio-init", "istio-proxy", "otc-container"]);
}

#[test]
fn jobs_and_cron_jobs_end_only_with_a_native_proxy() {
    let template = json!({"spec": {"restartPolicy": "Never", "initContainers": [istio_init()],
        "containers": [app(), proxy(&json!({}))]}});
    let job = json!({"kind": "Job", "spec": {"template": template}});
    let cron = json!({"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": template}}}});
    for (document, path) in [
        (&job, "/spec/template"),
        (&cron, "/spec/jobTemplate/spec/template"),
    ] {
        let report = checked(document);
        let finding = find(&report, "RM005", "istio-proxy").expect("found");
        assert_eq!(finding.severity, Severity::Error);
        assert_eq!(finding.path, format!("{path}/spec/containers/1"));
        assert!(find(&fix(document, &Options::default()).report, "RM005", "istio-proxy").is_none());
    }
}

#[test]
fn old_kubelets_are_not_offered_native_sidecars() {
    let broken = pod(
        &json!([istio_init(), downloading_agent()]),
        &json!([app(), proxy(&json!({}))]),
    );
    let options = Options {
        kubelet: Some("v1.28.4".to_owned()),
        ..Options::default()
    };
    let report = check(&broken, &options);
    assert!(
        report
            .findings
            .iter()
            .flat_map(|f| &f.fixes)
            .all(|f| !f.title.contains("native"))
    );
    let fixed = fix(&broken, &options);
    assert!(find(&fixed.report, "RM001", "opentelemetry-auto-instrumentation").is_none());
}

#[test]
fn hook_that_waits_for_the_proxy() {
    let waiting = json!({"name": "app", "lifecycle": {"postStart": {"exec": {"command":
        ["sh", "-c", "until curl -s http://config:8888/; do sleep 1; done"]}}}});
    let report = checked(&pod(&json!([istio_init()]), &json!([waiting, proxy(&json!({}))])));
    let finding = find(&report, "RM004", "app").expect("found");
    assert_eq!(
        (finding.severity, finding.path.as_str()),
        (Severity::Error, "/spec/containers/0/lifecycle/postStart")
    );
    assert!(finding.cycle.is_some());
}

#[test]
fn kuma_waiting_hook_without_an_init_container_waits_for_its_own_address() {
    let sidecar = json!({"name": "kuma-sidecar", "lifecycle": {"postStart": {"exec": {"command": ["kuma-dp", "wait"]}}}});
    let broken = pod(&json!([]), &json!([sidecar, app()]));
    assert!(find(&checked(&broken), "RM009", "kuma-sidecar").is_some());
    let fixed = fix(&broken, &Options::default());
    assert!(
        find(&fixed.report, "RM009", "kuma-sidecar").is_none(),
        "an init container that does nothing cures it"
    );
}

#[test]
fn linkerd_is_known() {
    let init = json!({"name": "linkerd-init", "args": ["--outbound-ports-to-ignore", "25,5432"]});
    let linkerd = json!({"name": "linkerd-proxy", "securityContext": {"runAsUser": 2102}});
    let wait = json!({"name": "wait", "command": ["pg_isready", "-h", "db:5433"]});
    let report = checked(&pod(&json!([init, wait]), &json!([app(), linkerd])));
    assert_eq!(report.analysis.setup.mesh.name, "linkerd");
    assert!(find(&report, "RM001", "wait").is_some());
}

#[test]
fn instrumented_proxy_is_found() {
    let wrong = proxy(
        &json!({"volumeMounts": [{"name": "opentelemetry-auto-instrumentation-java"}],
        "lifecycle": {"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}}),
    );
    let report = checked(&pod(&json!([istio_init()]), &json!([wrong, app()])));
    assert!(find(&report, "RM020", "istio-proxy").is_some());
}

#[test]
fn a_pod_without_a_mesh_has_nothing_to_say() {
    let report = checked(&pod(&json!([downloading_agent()]), &json!([app()])));
    assert_eq!(codes(&report), Vec::<&str>::new());
}

#[test]
fn a_well_made_native_pod_has_no_errors_or_warnings() {
    let native = proxy(&json!({"restartPolicy": "Always",
        "startupProbe": {"httpGet": {"path": "/healthz/ready", "port": 15021}, "periodSeconds": 1}}));
    let report = checked(&pod(
        &json!([istio_init(), native, downloading_agent()]),
        &json!([app()]),
    ));
    assert_eq!(
        report.worst().filter(|s| *s != Severity::Note),
        None,
        "{:?}",
        codes(&report)
    );
}

#[test]
fn every_code_has_a_page() {
    for rule in remora_startup::findings::rules() {
        let page = rule.page();
        assert!(page.starts_with(&format!("# {}", rule.code)) && page.contains("## What to do"));
        assert_eq!(
            remora_startup::findings::rule(&rule.code.to_lowercase()),
            Some(rule)
        );
    }
}

/// The page that lists all codes, as it has to be in the repository.
fn reference_page() -> String {
    let mut page = "# Codes\n\nEvery finding of `remora check`, explained. `remora check --explain RM001` prints the same page.\n\n\
                    | code | about |\n| --- | --- |\n"
        .to_owned();
    for rule in remora_startup::findings::rules() {
        let row = format!("| [{}](#{}) | {} |\n", rule.code, anchor(rule), rule.title);
        page.push_str(&row);
    }
    for rule in remora_startup::findings::rules() {
        page.push('\n');
        page.push_str(&rule.page().replace("\n## ", "\n### ").replacen("# ", "## ", 1));
    }
    page
}

fn anchor(rule: &remora_startup::findings::Rule) -> String {
    format!("{}-{}", rule.code, rule.title)
        .to_lowercase()
        .replace(' ', "-")
}

#[test]
fn the_reference_page_lists_every_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/codes.md");
    let expected = reference_page();
    if std::env::var_os("REMORA_WRITE_DOCS").is_some() {
        std::fs::write(path, &expected).expect("the page is written");
    }
    let found = std::fs::read_to_string(path).expect("the page is in the repository");
    assert!(
        found == expected,
        "docs/codes.md is out of date: run this test with REMORA_WRITE_DOCS=1"
    );
}

#[test]
fn the_report_can_be_written_down() {
    let broken = pod(
        &json!([istio_init(), downloading_agent()]),
        &json!([app(), proxy(&json!({}))]),
    );
    let written = remora_startup::json::report(&checked(&broken));
    assert_eq!(
        (&written["mode"], &written["mesh"]),
        (&json!("classic"), &json!("istio"))
    );
    assert_eq!(written["findings"][0]["code"], "RM001");
    let agent = &written["processes"][1];
    assert_eq!(agent["process"], "opentelemetry-auto-instrumentation");
    assert_eq!(agent["network"][0]["state"], "broken");
    let waits = written["deadlocks"][0]["waits"].as_array().expect("a list");
    assert!(
        waits[0]
            .as_str()
            .is_some_and(|w| w.starts_with("network for opentelemetry")),
        "{waits:#?}"
    );
}

#[test]
fn a_native_proxy_that_lost_its_restart_policy_gets_it_back() {
    let lost = proxy(
        &json!({"startupProbe": {"httpGet": {"path": "/healthz/ready", "port": 15021}, "periodSeconds": 1}}),
    );
    let broken = pod(&json!([istio_init(), lost, downloading_agent()]), &json!([app()]));
    assert!(find(&checked(&broken), "RM023", "istio-proxy").is_some());
    let fixed = fix(&broken, &Options::default());
    assert_eq!(
        fixed.document["spec"]["initContainers"][1]["restartPolicy"],
        "Always"
    );
    assert_eq!(
        fixed.report.worst().filter(|s| *s != Severity::Note),
        None,
        "{:?}",
        codes(&fixed.report)
    );
}

#[test]
fn a_pod_of_absurd_size_is_checked_in_time() {
    let needy = |n: usize| json!({"name": format!("i{n}"), "command": ["curl", "http://config:8080/"]});
    let inits: Vec<Value> = std::iter::once(istio_init())
        .chain((0..5000).map(needy))
        .collect();
    let report = checked(&pod(&json!(inits), &json!([app(), proxy(&json!({}))])));
    assert_eq!(
        report.findings.iter().filter(|f| f.rule.code == "RM001").count(),
        5000
    );
}

#[test]
fn a_gateway_takes_its_traffic_itself() {
    let gateway = proxy(&json!({"args": ["proxy", "router", "--domain", "x"]}));
    let report = checked(&pod(&json!([]), &json!([gateway])));
    assert_eq!(report.analysis.setup.mode, Mode::None);
    assert_eq!(codes(&report), ["RM022"]);
}

#[test]
fn a_proxy_to_be_filled_in_is_no_proxy_yet() {
    let placeholder = json!({"name": "istio-proxy", "image": "auto", "securityContext": {"runAsUser": 1000}});
    let document = pod(&json!([]), &json!([app(), placeholder]));
    assert_eq!(checked(&document).analysis.setup.mode, Mode::None);
    let options = Options {
        mode: Some(Mode::Native),
        ..Options::default()
    };
    let report = check(&document, &options);
    assert_eq!(report.analysis.setup.mode, Mode::Native);
    assert_eq!(
        report
            .analysis
            .view
            .containers
            .iter()
            .filter(|c| c.name == "istio-proxy")
            .count(),
        1
    );
}

#[test]
fn the_user_the_rules_leave_alone_is_read_from_their_arguments() {
    let init = init_with(&["-u", "4321", "-g", "4321"]);
    let fetch = json!({"name": "fetch", "command": ["curl", "http://config:8080/"], "securityContext": {"runAsUser": 4321}});
    let report = checked(&pod(&json!([init, fetch]), &json!([app(), proxy(&json!({}))])));
    assert!(find(&report, "RM001", "fetch").is_none());
}

#[test]
fn a_pod_that_is_not_injected_yet_is_not_called_clean() {
    let mut document = pod(&json!([downloading_agent()]), &json!([app()]));
    document["metadata"]["labels"] = json!({"sidecar.istio.io/inject": "true"});
    let report = checked(&document);
    let finding = find(&report, "RM024", "").expect("found");
    assert_eq!(
        (finding.severity, finding.path.as_str()),
        (Severity::Note, "/metadata/labels")
    );
    let options = Options {
        mode: Some(Mode::Cni),
        ..Options::default()
    };
    assert!(find(&check(&document, &options), "RM024", "").is_none());
}
