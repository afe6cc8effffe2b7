//! What the parts of the application answer.

use super::http::{Answer, Request, get};
use crate::{out, settings};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

const BETWEEN: Duration = Duration::from_millis(500);

/// Where another part is: `DETAILS_URL` and so on, else by its Service.
fn part(variable: &str, name: &str) -> String {
    settings::variable(variable).unwrap_or_else(|| format!("http://{name}:9080"))
}

fn ask(url: &str) -> Result<Value, String> {
    match get(url) {
        Ok((200, body)) => serde_json::from_str(&body).map_err(|e| format!("{url}: {e}")),
        Ok((status, _)) => Err(format!("{url}: status {status}")),
        Err(error) => Err(format!("{url}: {error}")),
    }
}

fn is_probe(request: &Request) -> bool {
    request.path == "/health" || request.user_agent.starts_with("kube-probe")
}

fn log(request: &Request, answer: &Answer) {
    if !is_probe(request) {
        out::note(format_args!("{} {}", request.path, answer.status));
    }
}

fn logged(request: &Request, answer: Answer) -> Answer {
    log(request, &answer);
    answer
}

pub(super) fn details(request: &Request) -> Answer {
    if is_probe(request) {
        return Answer::text(200, "ok\n");
    }
    let answer = Answer::json(&json!({
        "title": "The Comedy of Errors", "author": "William Shakespeare", "year": 1595, "pages": 200,
    }));
    logged(request, answer)
}

pub(super) fn ratings(request: &Request) -> Answer {
    if is_probe(request) {
        return Answer::text(200, "ok\n");
    }
    logged(request, Answer::json(&json!({"Reviewer1": 5, "Reviewer2": 4})))
}

pub(super) fn reviews(request: &Request) -> Answer {
    reviews_with(request, "v1", None)
}

pub(super) fn reviews_black(request: &Request) -> Answer {
    reviews_with(request, "v2", Some("black"))
}

pub(super) fn reviews_red(request: &Request) -> Answer {
    reviews_with(request, "v3", Some("red"))
}

fn reviews_with(request: &Request, version: &str, colour: Option<&str>) -> Answer {
    if is_probe(request) {
        return Answer::text(200, "ok\n");
    }
    let stars = colour.map(|colour| {
        let found = ask(&format!("{}/ratings/0", part("RATINGS_URL", "ratings")));
        json!({"color": colour, "stars": found.unwrap_or_else(|error| json!({"error": error}))})
    });
    let answer = Answer::json(&json!({
        "podname": settings::variable("HOSTNAME").unwrap_or_default(),
        "version": version,
        "reviews": ["An extremely entertaining play.", "Absolutely fun and entertaining."],
        "ratings": stars,
    }));
    logged(request, answer)
}

pub(super) fn productpage(request: &Request) -> Answer {
    if is_probe(request) {
        return Answer::text(200, "ok\n");
    }
    if request.path != "/productpage" && request.path != "/" {
        return logged(request, Answer::text(404, "not here; try /productpage\n"));
    }
    let details = ask(&format!("{}/details/0", part("DETAILS_URL", "details")));
    let reviews = ask(&format!("{}/reviews/0", part("REVIEWS_URL", "reviews")));
    let status = if details.is_ok() && reviews.is_ok() {
        200
    } else {
        503
    };
    let answer = Answer {
        status,
        kind: "text/html; charset=utf-8",
        body: page(details, reviews),
    };
    logged(request, answer)
}

fn page(details: Result<Value, String>, reviews: Result<Value, String>) -> String {
    let section = |title: &str, content: Result<Value, String>| {
        let (class, text) = match content {
            Ok(value) => ("ok", serde_json::to_string_pretty(&value).unwrap_or_default()),
            Err(error) => ("error", error),
        };
        format!(
            "<h2>{title}</h2>\n<pre class=\"{class}\">{}</pre>\n",
            escape(&text)
        )
    };
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>Simple Bookstore App</title>\n\
         <style>body{{font-family:sans-serif;max-width:45em;margin:2em auto}}.error{{color:#b00}}</style></head>\n\
         <body>\n<h1>The Comedy of Errors</h1>\n{}{}</body>\n</html>\n",
        section("Book Details", details),
        section("Book Reviews", reviews)
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

pub(super) fn hello(request: &Request) -> Answer {
    if is_probe(request) {
        return Answer::text(200, "ok\n");
    }
    let name = settings::variable("HOSTNAME").unwrap_or_default();
    logged(request, Answer::text(200, format!("hello from {name}\n")))
}

pub(super) fn call(url: &str, tries: u32, hold: u64) -> ExitCode {
    for attempt in 1..=tries.max(1) {
        match get(url) {
            Ok((status, _)) if status < 400 => {
                out::note(format_args!("{url} answered {status} at attempt {attempt}"));
                return keep_calling(url, hold);
            }
            Ok((status, _)) => out::note(format_args!("{url} answered {status}")),
            Err(error) => out::note(format_args!("{url}: {error}")),
        }
        if attempt < tries {
            super::pause(BETWEEN);
        }
    }
    ExitCode::FAILURE
}

fn keep_calling(url: &str, seconds: u64) -> ExitCode {
    for _ in 0..seconds {
        super::pause(Duration::from_secs(1));
        if !matches!(get(url), Ok((status, _)) if status < 400) {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
