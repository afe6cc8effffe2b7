//! Apache HTTPD and nginx.

use serde_json::{Value, json};

use super::{app, case};

const AGENT: &str = "/opt/opentelemetry-webserver/agent";

#[test]
fn apache_is_cloned_attached_and_mounted_over() {
    let cr = json!({"apacheHttpd": {"image": "agents/web:1", "configPath": "/srv/conf/", "version": "2.2",
                    "attrs": [{"name": "ApacheModuleResolveBackends", "value": "OFF"}]},
                    "initContainerSecurityContext": {"runAsUser": 3}});
    let spec = json!({"containers": [{"name": "web", "image": "httpd:2", "imagePullPolicy": "Never",
        "env": [{"name": "MINE", "value": "1"}], "envFrom": [{"configMapRef": {"name": "c"}}],
        "volumeMounts": [{"name": "conf", "mountPath": "/srv/conf/httpd.conf"}, {"name": "data", "mountPath": "/data"}]}],
        "volumes": [{"name": "conf"}, {"name": "data"}]});
    let run = case(&[("inject-apache-httpd", "true")], &cr, spec).run();
    assert_eq!(
        run.names("initContainers"),
        ["otel-agent-source-container-clone", "otel-agent-attach-apache"]
    );
    let clone = run.container("otel-agent-source-container-clone");
    assert_eq!(
        clone["command"],
        json!([
            "cp",
            "-r",
            "/srv/conf/.",
            "/opt/opentelemetry-webserver/source-conf"
        ])
    );
    assert_eq!(
        (&clone["image"], &clone["imagePullPolicy"]),
        (&json!("httpd:2"), &json!("Never"))
    );
    assert_eq!(clone["env"], json!([{"name": "MINE", "value": "1"}]));
    assert_eq!(clone["envFrom"], json!([{"configMapRef": {"name": "c"}}]));
    assert_eq!(clone["volumeMounts"].as_array().unwrap().len(), 3);
    assert_eq!(clone["securityContext"], json!({"runAsUser": 3}));
    let attach = run.container("otel-agent-attach-apache");
    assert_eq!(
        attach["args"].as_array().unwrap()[1..],
        [json!("--"), json!("/srv/conf")]
    );
    let conf = run
        .env("otel-agent-attach-apache", "OTEL_APACHE_AGENT_CONF")
        .as_str()
        .unwrap();
    assert!(conf.contains("libmod_apache_otel22.so\n#Attributes\n"));
    assert!(
        conf.contains("ApacheModuleResolveBackends OFF\n") && conf.contains("ApacheModuleServiceName web\n")
    );
    assert!(conf.contains("ApacheModuleOtelExporterEndpoint http://localhost:4317/\n"));
    let mounts = json!([{"name": "data", "mountPath": "/data"}, {"name": "otel-apache-agent", "mountPath": AGENT},
                        {"name": "otel-apache-conf-dir", "mountPath": "/srv/conf"}]);
    assert_eq!(run.container("web")["volumeMounts"], mounts);
}

#[test]
fn nginx_gets_a_library_path_and_plain_volumes() {
    let cr =
        json!({"nginx": {"configFile": "/opt/nginx/main.conf"}, "env": [{"name": "COMMON", "value": ""}]});
    let mut spec = app();
    spec["containers"][0]["env"] = json!([{"name": "LD_LIBRARY_PATH", "value": "/mine"}]);
    let run = case(&[("inject-nginx", "true")], &cr, spec).run();
    assert_eq!(
        run.env("app", "LD_LIBRARY_PATH"),
        "/mine:/opt/opentelemetry-webserver/agent/sdk_lib/lib"
    );
    assert_eq!(
        run.container("otel-agent-source-container-clone")["args"][2],
        "/opt/nginx"
    );
    assert_eq!(run.container("otel-agent-attach-nginx")["args"][2], "main.conf");
    assert_eq!(
        run.volume("otel-nginx-agent"),
        &json!({"name": "otel-nginx-agent", "emptyDir": {}})
    );
    let conf = run
        .env("otel-agent-attach-nginx", "OTEL_NGINX_AGENT_CONF")
        .as_str()
        .unwrap();
    assert!(conf.starts_with("NginxModuleEnabled ON;\n") && conf.ends_with("NginxModuleTraceAsError ON;\n"));
}

#[test]
fn servers_named_for_the_language_each_get_a_module() {
    let spec = json!({"containers": [{"name": "one"}, {"name": "two"}, {"name": "three"}]});
    let short = [
        ("inject-apache-httpd", "true"),
        ("apache-httpd-container-names", "one,two"),
        ("inject-nginx", "true"),
        ("inject-nginx-container-names", "three"),
    ];
    let given = case(&short, &json!({}), spec);
    let run = given.run();
    assert_eq!(
        run.names("initContainers"),
        [
            "otel-agent-source-container-clone",
            "otel-agent-attach-apache",
            "otel-agent-source-container-clone-two",
            "otel-agent-attach-apache-two",
            "otel-agent-source-container-clone-three",
            "otel-agent-attach-nginx"
        ]
    );
    assert_eq!(
        run.container("two")["volumeMounts"][0]["name"],
        "otel-apache-agent-two"
    );
    assert_eq!(
        run.container("three")["volumeMounts"][0]["name"],
        "otel-nginx-agent"
    );
    assert!(run.codes().is_empty());
    assert!(!given.again(&run).outcome.changed);
}

#[test]
fn the_list_for_all_languages_gives_a_module_to_the_first_only() {
    let spec = json!({"containers": [{"name": "web"}, {"name": "queue"}]});
    let given = case(
        &[("inject-apache-httpd", "true"), ("container-names", "web,queue")],
        &json!({}),
        spec,
    );
    let run = given.run();
    assert_eq!(run.names("initContainers").len(), 2);
    assert_eq!(run.container("queue")["volumeMounts"], Value::Null);
    assert_eq!(run.env("queue", "OTEL_SERVICE_NAME"), "queue");
    assert_eq!(run.codes(), ["otel-webserver-first-only"]);
    assert!(!given.again(&run).outcome.changed);
}

#[test]
fn nothing_foreign_becomes_configuration() {
    let section = |key: &str, value: Value| json!({"nginx": {key: value}});
    let attr = |name: &str, value: &str| section("attrs", json!([{"name": name, "value": value}]));
    let hostile = [
        attr("X", "1; load_module /tmp/x.so"),
        attr("X", "1\nload_module /tmp/x.so"),
        attr("X", "{"),
        attr("X", "\\"),
        attr("X on;", "1"),
        section("configFile", json!("/etc/nginx/$(id)/nginx.conf")),
        section("configFile", json!("/etc/../x")),
        section("configFile", json!("nginx.conf")),
        section("configFile", json!("/nginx.conf")),
        json!({"exporter": {"endpoint": "http://x; y"}}),
    ];
    for cr in hostile {
        case(&[("inject-nginx", "true")], &cr, app())
            .run()
            .untouched("otel-webserver-config");
    }
    let mut given = case(&[("inject-apache-httpd", "true")], &json!({}), app());
    given.annotations["resource.opentelemetry.io/service.name"] = json!("shop\nLoadModule x /tmp/x.so");
    given.run().untouched("otel-webserver-config");
}

#[test]
fn scripts_are_the_same_whatever_the_values_are() {
    let script = |cr: Value| {
        let run = case(&[("inject-nginx", "true")], &cr, app()).run();
        run.container("otel-agent-attach-nginx")["args"][0].clone()
    };
    let other = json!({"nginx": {"configFile": "/a/b.conf", "attrs": [{"name": "X", "value": "y"}]}});
    assert_eq!(script(json!({})), script(other));
}
