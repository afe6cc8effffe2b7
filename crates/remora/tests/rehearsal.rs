//! Model = reality: pods of actors on real namespaces do what the model says and what a real kubelet did.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that cannot go on fails"
)]

#[path = "rehearsal/ambient.rs"]
mod ambient;
#[path = "rehearsal/forecast.rs"]
mod forecast;
#[path = "rehearsal/generated.rs"]
mod generated;
#[path = "rehearsal/judge.rs"]
mod judge;
#[path = "rehearsal/play.rs"]
mod play;
#[path = "rehearsal/recorded.rs"]
mod recorded;
#[path = "rehearsal/scene.rs"]
mod scene;
#[path = "rehearsal/stage.rs"]
mod stage;

use serde_json::Value;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The first document of a text.
fn yaml(text: &str) -> Value {
    use remora_pod::yaml;
    let mut documents = yaml::split(text).filter_map(|raw| {
        let parsed = yaml::parse(&raw, yaml::Limits::default());
        parsed.unwrap_or_else(|e| panic!("{e}")).map(|d| d.value)
    });
    documents.next().unwrap()
}

/// Does work for every item, so many at a time; what does not hold, by name.
fn each<T: Sync>(items: &[T], at_once: usize, work: impl Fn(&T) -> Result<(), String> + Sync) -> Vec<String> {
    // One test at a time: a crowded machine has no sense of time.
    static STAGE: Mutex<()> = Mutex::new(());
    let _alone = STAGE.lock().unwrap_or_else(PoisonError::into_inner);
    let next = Mutex::new(items.iter());
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let Some(item) = next.lock().unwrap().next() else {
                        return;
                    };
                    if let Err(error) = work(item) {
                        wrong.lock().unwrap().push(error);
                    }
                }
            });
        }
    });
    wrong.into_inner().unwrap()
}

/// How many pods are on stage at a time.
const AT_ONCE: usize = 12;
/// A busy machine can make a recorded race come out differently; three times in a row it does not.
const TRIES: usize = 3;

/// What `seen` says about a performance that went wrong.
fn told(name: &str, wrong: &[String], seen: &stage::Performance, pod: &Value) -> String {
    format!(
        "{name}: {}\n  {}\n  {}\n{}",
        wrong.join("; "),
        seen.ids().join("\n  "),
        seen.troubles.join("\n  "),
        remora_pod::yaml::write(pod)
    )
}

/// Plays it until it holds; what was wrong the last time.
fn holds(play: &play::Play, judge: impl Fn(&stage::Performance) -> Vec<String>) -> Result<(), String> {
    let name = play.name();
    let mut last = String::new();
    for attempt in 1..=TRIES {
        let seen = stage::perform(play).map_err(|e| format!("{name}: {e}"))?;
        let wrong = judge(&seen);
        if wrong.is_empty() {
            return Ok(());
        }
        last = told(name, &wrong, &seen, &play.pod);
        println!("attempt {attempt} of {last}");
    }
    Err(last)
}

/// Part of the names of the scenes to play: all, unless `REMORA_SCENE` says otherwise.
fn wanted() -> String {
    let wanted = std::env::var_os("REMORA_SCENE").unwrap_or_default();
    wanted.to_string_lossy().into_owned()
}

/// Our own scenes: on real namespaces and in the model alike.
#[test]
fn scenes_hold_on_this_engine_and_in_the_model() {
    let text = include_str!("rehearsal/scenes.yaml").replace("LOOK", "--target t=TARGET:8080");
    let mut scenes = yaml(&text)["scenes"].as_array().unwrap().clone();
    scenes.retain(|scene| scene["scene"].as_str().unwrap().contains(&wanted()));
    let wrong = each(&scenes, AT_ONCE, |scene| {
        let play = scene::play(scene);
        let mut expected = scene["expect"].clone();
        if expected["final_phase"].is_null() {
            expected["final_phase"] = serde_json::json!(["Pending", "Running", "Succeeded", "Failed"]);
        }
        let forecast = forecast::Forecast::of(&play);
        holds(&play, |seen| {
            let mut wrong = seen.wrong(&expected);
            wrong.extend(forecast.wrong(seen));
            wrong
        })
    });
    println!("{} scenes, {} do not hold", scenes.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Generated pods; `REMORA_PODS` says how many, `REMORA_SEED` where to begin.
#[test]
fn generated_pods_do_what_the_model_says() {
    let number = |name: &str, usual: u64| {
        let given = std::env::var_os(name).and_then(|v| v.to_str()?.parse().ok());
        given.unwrap_or(usual)
    };
    let first = number("REMORA_SEED", 1);
    let seeds: Vec<u64> = (first..first + number("REMORA_PODS", 40)).collect();
    let wrong = each(&seeds, AT_ONCE, |seed| {
        let scene = generated::scene(*seed).to_string();
        let scene = serde_json::from_str(&scene.replace("LOOK", "--target t=TARGET:8080")).unwrap();
        let play = scene::play(&scene);
        let forecast = forecast::Forecast::of(&play);
        holds(&play, |seen| forecast.wrong(seen))
    });
    println!("{} generated pods, {} differ", seeds.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Recordings of a real kubelet, where `REMORA_RECORDINGS` says they are; `REMORA_SCENE` chooses by name.
#[test]
fn recordings_of_a_kubelet_hold_on_this_engine() {
    let Some(root) = std::env::var_os("REMORA_RECORDINGS") else {
        println!("REMORA_RECORDINGS is not set: there is nothing to compare with");
        return;
    };
    let entries = std::fs::read_dir(&root).unwrap().flatten().map(|e| e.path());
    let mut folders: Vec<PathBuf> = entries.filter(|p| p.join("summary.yaml").is_file()).collect();
    folders.retain(|f| f.to_string_lossy().contains(&wanted()));
    folders.sort();
    assert!(!folders.is_empty(), "no recordings in {}", root.display());
    let wrong = each(&folders, AT_ONCE, |folder| {
        let (play, expected) = recorded::read(folder);
        holds(&play, |seen| seen.wrong(&expected))
    });
    println!("{} recordings, {} do not hold", folders.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
