//! The root certificate in its Secret: what it says, and when which step of its exchange is due. Pure.
//!
//! An exchange has three steps, as [`RootRotation`] tells: a second root is introduced and believed, later it signs,
//! later the first one is forgotten. Each step is one write of the Secret under the version that was read, so of
//! several control planes exactly one makes it; all of them follow what is written. Nobody has to be elected.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use remora_mtls::{Authority, AuthorityError, AuthorityState, RootRotation};
use remora_pod::object;
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};

// istio: keys of the secret.
const CERTIFICATE: &str = "ca-cert.pem";
const KEY: &str = "ca-key.pem";
const ROOTS: &str = "root-cert.pem";
const NEXT_CERTIFICATE: &str = "next-cert.pem";
const NEXT_KEY: &str = "next-key.pem";
const RETIRED: &str = "retired-cert.pem";
// istio: ten years.
pub(super) const LIFE: Duration = Duration::from_hours(10 * 365 * 24);
/// A root of ours is exchanged when no more than this is left of it.
const LEFT: Duration = Duration::from_hours(2 * 365 * 24);
/// Says that we made the root: one that somebody brought is that person's to exchange.
const OURS: &str = "remora.dev/root";
const MADE: &str = "made-by-remora";
/// When the last step was made, in seconds since 1970.
const SINCE: &str = "remora.dev/root-since";
/// Asks for an exchange now.
pub(super) const ASKED: &str = "remora.dev/exchange-root";

/// How long each state of an exchange lasts at least.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waits {
    /// Until everybody has learned to believe the new root.
    pub(super) introduced: Duration,
    /// Until the last certificate of the old root was replaced.
    pub(super) switched: Duration,
}

/// Reads a Secret.
pub(super) fn read(secret: &Value) -> Result<AuthorityState, String> {
    let field = |name: &str| -> Result<Option<String>, String> {
        let Some(text) = secret["data"][name].as_str().filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let bytes = STANDARD
            .decode(text)
            .map_err(|error| format!("{name}: {error}"))?;
        let text = String::from_utf8(bytes).map_err(|_| format!("{name} is not text"))?;
        Ok(Some(text))
    };
    let needed = |name: &str| field(name)?.ok_or_else(|| format!("it has no {name}"));
    Ok(AuthorityState {
        certificate: needed(CERTIFICATE)?,
        key: needed(KEY)?,
        next: field(NEXT_CERTIFICATE)?.zip(field(NEXT_KEY)?),
        retired: field(RETIRED)?.unwrap_or_default(),
    })
}

/// The authority a Secret describes.
pub(super) fn authority(secret: &Value) -> Result<Authority, String> {
    Authority::from_state(&read(secret)?).map_err(|error| error.to_string())
}

/// A Secret's fields for an authority that was made now.
pub(super) fn made(authority: &Authority, now: SystemTime) -> Value {
    json!({"type": "istio.io/ca-root", "data": data(authority),
        "metadata": {"annotations": {OURS: MADE, SINCE: seconds(now)}}})
}

/// The Secret after the step that is due now; `None`: nothing is.
pub(super) fn step(secret: &Value, waits: Waits, now: SystemTime) -> Result<Option<Value>, AuthorityError> {
    let Ok(kept) = read(secret) else {
        return Ok(None);
    };
    let mut authority = Authority::from_state(&kept)?;
    let annotation = |key: &str| object::annotation(secret, key);
    let since = annotation(SINCE).and_then(|text| text.parse().ok()).unwrap_or(0);
    let lasted = now
        .duration_since(SystemTime::UNIX_EPOCH + Duration::from_secs(since))
        .unwrap_or_default();
    match authority.rotation() {
        RootRotation::None => {
            let left = authority.not_after().duration_since(now).unwrap_or_default();
            let old = annotation(OURS) == Some(MADE) && left < LEFT;
            if !old && annotation(ASKED).is_none() {
                return Ok(None);
            }
            authority.introduce_root("remora", now, LIFE)?;
        }
        RootRotation::Introduced if lasted >= waits.introduced => authority.switch_root()?,
        RootRotation::Switched if lasted >= waits.switched => authority.retire_root()?,
        RootRotation::Introduced | RootRotation::Switched => return Ok(None),
    }
    Ok(Some(written(secret, &authority, now)))
}

fn written(secret: &Value, authority: &Authority, now: SystemTime) -> Value {
    let mut next = secret.clone();
    next["data"] = data(authority);
    let annotations = &mut next["metadata"]["annotations"];
    if !annotations.is_object() {
        *annotations = json!({});
    }
    annotations[SINCE] = json!(seconds(now));
    // From the first step on the root is ours.
    annotations[OURS] = json!(MADE);
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.remove(ASKED);
    }
    next
}

fn data(authority: &Authority) -> Value {
    let kept = authority.state();
    let mut data = json!({CERTIFICATE: STANDARD.encode(&kept.certificate), KEY: STANDARD.encode(&kept.key),
        ROOTS: STANDARD.encode(authority.roots())});
    if let Some((certificate, key)) = &kept.next {
        data[NEXT_CERTIFICATE] = json!(STANDARD.encode(certificate));
        data[NEXT_KEY] = json!(STANDARD.encode(key));
    }
    if !kept.retired.is_empty() {
        data[RETIRED] = json!(STANDARD.encode(&kept.retired));
    }
    data
}

fn seconds(now: SystemTime) -> String {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs().to_string()
}

#[cfg(test)]
mod tests {
    use super::{ASKED, LIFE, Waits, authority, made, step};
    use remora_mtls::{Authority, RootRotation};
    use serde_json::{Value, json};
    use std::time::{Duration, SystemTime};

    const DAY: Duration = Duration::from_hours(24);
    const WAITS: Waits = Waits {
        introduced: DAY,
        switched: Duration::from_hours(90 * 24),
    };

    fn secret(now: SystemTime, life: Duration) -> Value {
        made(&Authority::generate("remora", now, life).unwrap(), now)
    }

    #[test]
    fn a_root_is_exchanged_in_time_and_step_by_step() {
        let start = SystemTime::now();
        let first = secret(start, LIFE);
        assert_eq!(step(&first, WAITS, start).unwrap(), None);
        let late = start + DAY * 365 * 9;
        let introduced = step(&first, WAITS, late).unwrap().unwrap();
        let both = authority(&introduced).unwrap();
        assert_eq!(both.rotation(), RootRotation::Introduced);
        assert_eq!(
            both.to_pem(),
            authority(&first).unwrap().to_pem(),
            "the old one signs"
        );
        assert_eq!(
            step(&introduced, WAITS, late + DAY / 2).unwrap(),
            None,
            "not everybody knows it yet"
        );
        let switched = step(&introduced, WAITS, late + DAY).unwrap().unwrap();
        let now = authority(&switched).unwrap();
        assert_eq!(now.rotation(), RootRotation::Switched);
        assert_eq!(now.roots().matches("BEGIN").count(), 2);
        assert_eq!(
            step(&switched, WAITS, late + DAY * 50).unwrap(),
            None,
            "certificates of the old one live"
        );
        let done = step(&switched, WAITS, late + DAY * 92).unwrap().unwrap();
        let last = authority(&done).unwrap();
        assert_eq!(
            (last.rotation(), last.roots().matches("BEGIN").count()),
            (RootRotation::None, 1)
        );
        assert_eq!(last.to_pem(), now.to_pem());
    }

    #[test]
    fn a_root_that_was_brought_is_exchanged_when_it_is_asked_for_only() {
        let now = SystemTime::now();
        let mut brought = secret(now, DAY);
        brought["metadata"] = json!({"name": "istio-ca-secret", "resourceVersion": "7"});
        assert_eq!(step(&brought, WAITS, now).unwrap(), None);
        brought["metadata"]["annotations"] = json!({ASKED: "please"});
        let next = step(&brought, WAITS, now).unwrap().unwrap();
        assert_eq!(
            next["metadata"]["annotations"].get(ASKED),
            None,
            "asked once, done once"
        );
        assert_eq!(
            next["metadata"]["resourceVersion"], "7",
            "written over what was read only"
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut broken = secret(SystemTime::now(), DAY);
        broken["data"]["ca-key.pem"] = json!("%");
        assert!(authority(&broken).unwrap_err().starts_with("ca-key.pem: "));
        assert_eq!(authority(&json!({})).unwrap_err(), "it has no ca-cert.pem");
    }
}
