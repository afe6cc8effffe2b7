//! An Envoy that starts while the control plane is away.

use crate::process::PATIENCE;
use crate::scene::{Scene, here};
use remora_xds::raw::Protocol;
use remora_xds::types::NAME_TABLE;
use std::time::{Duration, Instant, SystemTime};

#[test]
fn envoy_starts_with_what_it_last_accepted_and_takes_what_is_live() {
    for (protocol, delta) in [(Protocol::Delta, "true"), (Protocol::Sotw, "false")] {
        if !here() {
            return;
        }
        let scene = Scene::new();
        scene.application();
        let env = Scene::env_with(&[
            ("ISTIO_DELTA_XDS", delta),
            ("REMORA_LAST_GOOD_DIR", "./kept"),
            ("OUTPUT_CERTS", "./certs"),
            ("ISTIO_META_DNS_CAPTURE", "true"),
        ]);
        let file = scene.path("kept/envoy.snapshot");
        // The agent's own part is kept as well: without a table of names it would not be ready.
        let plane = scene.plane_with(protocol, &[8443, 8445], vec![(NAME_TABLE, Vec::new())]);
        let mut before = scene.sidecar(env.clone());
        scene.ready();
        let started = Instant::now();
        while !file.exists() {
            assert!(started.elapsed() < PATIENCE, "{}", before.said());
            std::thread::park_timeout(Duration::from_millis(5));
        }
        assert_eq!(before.stop(), 0, "{}", before.said());
        drop(plane);
        let kept = std::fs::read(&file).unwrap();
        assert!(!String::from_utf8_lossy(&kept).contains("PRIVATE"));
        let opened = std::fs::File::options().write(true).open(&file).unwrap();
        let hour = SystemTime::now() - Duration::from_hours(1);
        opened.set_modified(hour).unwrap();

        let mut sidecar = scene.sidecar(env);
        scene.ready();
        sidecar.says("Envoy starts with the last good configuration, 36");
        let (_, body) = scene.ask(15021, "/healthz/ready").unwrap();
        assert!(body.contains("\"age_seconds\":36"), "{body}");
        let (_, page) = scene.ask(15020, "/stats/prometheus").unwrap();
        assert!(page.contains("istio_agent_config_age_seconds 36"), "{page}");
        let client = scene.client();
        let mut open = scene.call(&client, 8443).unwrap();

        // The control plane is back: one listener more, one less, and the first one is not touched.
        let _plane = scene.plane_that_speaks(protocol, &[8443, 8444]);
        scene.readiness(|status, body| status == 200 && !body.contains("last good"));
        let started = Instant::now();
        while scene.call(&client, 8444).is_err() || scene.call(&client, 8445).is_ok() {
            assert!(started.elapsed() < PATIENCE, "{}", sidecar.said());
            std::thread::park_timeout(Duration::from_millis(10));
        }
        open.ping().unwrap();
        drop(open);
        assert_eq!(sidecar.stop(), 0, "{}", sidecar.said());
    }
}
