//! Which host may get which credential: registries that redirect, name a foreign realm, or want plain HTTP elsewhere.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "common/fake.rs"]
mod fake;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fake::{Asked, Fake, Reply};
use remora_engine::registry::{Client, Credentials, PullError, Settings, ensure};
use remora_engine::store::Store;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// Credentials for these hosts; the password names the host it belongs to.
fn logins(hosts: &[&str]) -> Credentials {
    let entry = |host: &str| json!({"auth": STANDARD.encode(format!("alice:secret-of-{host}"))});
    let auths: serde_json::Map<_, _> = hosts.iter().map(|h| ((*h).to_owned(), entry(h))).collect();
    Credentials::from_json(&json!({ "auths": auths }).to_string()).unwrap()
}

async fn pull(image: &str, settings: Settings, credentials: &Credentials) -> PullError {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path().join("store")).unwrap());
    let client = Client::new(settings).unwrap();
    // None of these registries has an image.
    ensure(
        &store,
        &client,
        image,
        None,
        credentials,
        &(Arc::new(|_| ()) as _),
    )
    .await
    .unwrap_err()
}

/// What arrived, in clear text where it was Basic.
fn shown(asked: &[Asked]) -> Vec<String> {
    let clear = |header: &str| match header.strip_prefix("Basic ") {
        Some(text) => String::from_utf8(STANDARD.decode(text).unwrap()).unwrap(),
        None => header.to_owned(),
    };
    asked
        .iter()
        .filter_map(|a| a.header("authorization").map(clear))
        .collect()
}

/// A host that asks for credentials in both ways, and answers requests for tokens.
fn greedy() -> Fake {
    Fake::new(|asked| {
        if asked.path.starts_with("/token") {
            return Reply::ok(r#"{"token":"ticket"}"#);
        }
        let here = asked.header("host").unwrap();
        Reply::status(401).with(
            "www-authenticate",
            format!("Bearer realm=\"http://{here}/token\",service=\"x\""),
        )
    })
}

fn redirecting_to(other: SocketAddr) -> Fake {
    Fake::new(move |asked| Reply::status(307).with("location", format!("http://{other}{}", asked.path)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_challenge_behind_a_redirect_gets_no_credentials() {
    let other = greedy();
    let basic = Fake::new(|_| Reply::status(401).with("www-authenticate", "Basic realm=\"x\""));
    for thief in [&other, &basic] {
        let home = redirecting_to(thief.address);
        let host = home.address.to_string();
        let error = pull(
            &format!("{host}/team/app:1"),
            Settings::default(),
            &logins(&[&host]),
        )
        .await;
        assert_eq!(shown(&thief.asked("")), [""; 0], "{error}");
        assert_eq!(
            thief.asked("/token").len(),
            0,
            "not even an anonymous token is fetched"
        );
        let text = error.to_string();
        assert!(
            text.contains(&thief.address.to_string()),
            "the error names the host: {text}"
        );
        assert_eq!(home.asked("").len(), 1, "a refusal is final");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_that_returns_home_gets_no_credentials() {
    // HOME has given a token before. OTHER sends the client back to a path of HOME that OTHER chooses.
    let other = Fake::new(|asked| {
        let home = asked.path.rsplit('/').next().unwrap().to_owned();
        Reply::status(302).with("location", format!("http://{home}/v2/chosen/manifests/x"))
    });
    let away = other.address;
    let home = Fake::new(move |asked| {
        let here = asked.header("host").unwrap();
        if asked.path.starts_with("/token") {
            return Reply::ok(r#"{"token":"ticket"}"#);
        }
        if asked.path.contains("/chosen/") {
            return Reply::status(401).with("www-authenticate", "Basic realm=\"x\"");
        }
        if asked.header("authorization").is_none() {
            return Reply::status(401).with(
                "www-authenticate",
                format!("Bearer realm=\"http://{here}/token\""),
            );
        }
        Reply::status(302).with("location", format!("http://{away}/{here}"))
    });
    let host = home.address.to_string();
    pull(
        &format!("{host}/team/app:1"),
        Settings::default(),
        &logins(&[&host]),
    )
    .await;
    assert_eq!(home.asked("/chosen/").len(), 1);
    assert_eq!(shown(&home.asked("/chosen/")), [""; 0]);
    assert_eq!(shown(&other.asked("")), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_gets_its_own_credentials_only() {
    let (mirror, unknown) = (greedy(), greedy());
    let hosts = [mirror.address.to_string(), unknown.address.to_string()];
    let urls = hosts.iter().map(|h| format!("http://{h}")).collect();
    let settings = Settings {
        mirrors: BTreeMap::from([("127.0.0.1:1".to_owned(), urls)]),
        ..Settings::default()
    };
    pull(
        "127.0.0.1:1/team/app:1",
        settings,
        &logins(&["127.0.0.1:1", &hosts[0]]),
    )
    .await;
    let expected = format!("alice:secret-of-{}", hosts[0]);
    assert_eq!(shown(&mirror.asked("/token")), [expected]);
    assert_eq!(unknown.asked("/token").len(), 1, "an anonymous token is tried");
    assert_eq!(shown(&unknown.asked("/token")), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_realm_of_the_registry_itself_gets_its_credentials() {
    let home = greedy();
    let host = home.address.to_string();
    pull(
        &format!("{host}/team/app:1"),
        Settings::default(),
        &logins(&[&host]),
    )
    .await;
    assert_eq!(shown(&home.asked("/token")), [format!("alice:secret-of-{host}")]);
    assert_eq!(shown(&home.asked("/manifests/")), ["Bearer ticket"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_is_not_followed_to_another_machine() {
    // An address of a block for documentation. The client refuses before it connects.
    let target = "192.0.2.1:9";
    let home = Fake::new(move |asked| {
        let place = if asked.path.contains("/team/token/") {
            let realm = format!("Bearer realm=\"http://{target}/token\"");
            return Reply::status(401).with("www-authenticate", realm);
        } else {
            format!("http://{target}/blob")
        };
        Reply::status(302).with("location", place)
    });
    let host = home.address.to_string();
    for repository in ["team/app", "team/token"] {
        let error = pull(
            &format!("{host}/{repository}:1"),
            Settings::default(),
            &logins(&[&host]),
        )
        .await;
        let PullError::Protocol { why, .. } = &error else {
            panic!("{repository}: {error}")
        };
        assert!(why.contains("without TLS") && why.contains(target), "{why}");
    }
}
