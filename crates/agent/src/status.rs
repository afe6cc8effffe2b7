//! What the agent answers on its ports.
//!
//! | port | paths |
//! |---|---|
//! | 15021 | `/healthz/ready` |
//!
//! Readiness understands `?wait=MILLIS`: the answer comes when it is 200, when the sidecar stops, or after that time,
//! whichever is first.

use crate::http::{self, Answer, Request};
use crate::readiness::Readiness;
use std::time::Duration;

/// Longer waits are cut to this, so that nobody holds connections for ever.
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// Tells a caller that its wait was understood.
pub(crate) const WAITED: &str = "remora-waited";

/// Answers on the readiness port.
pub(crate) async fn readiness_port(request: Request, readiness: Readiness) -> Answer {
    match request.uri().path() {
        "/healthz/ready" => ready(&request, &readiness).await,
        _ => http::text(404, "only /healthz/ready is here\n"),
    }
}

async fn ready(request: &Request, readiness: &Readiness) -> Answer {
    let wait = http::query(request, "wait").and_then(|text| text.parse().ok());
    let wait = wait.map(|millis| Duration::from_millis(millis).min(LONGEST_WAIT));
    if let Some(wait) = wait {
        // Time over is as good: then the answer says what is missing.
        let _ = tokio::time::timeout(wait, readiness.settled()).await;
    }
    let state = readiness.state();
    let (status, body) = state.answer();
    let mut answer = http::json(status, &body);
    // One that stops will not be ready: asking again at once would only keep it busy.
    if wait.is_some() && !state.is_stopping() {
        answer
            .headers_mut()
            .insert(WAITED, ::http::HeaderValue::from_static("true"));
    }
    answer
}
