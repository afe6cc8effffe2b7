//! Puts one pod on a stage of its own: a run of the engine with somebody outside to call, and actors in every part.

use crate::play::Play;
use remora_engine::container::{Container, Stdio};
use remora_engine::manifest::{Manifest, Reading};
use remora_engine::pod::Order;
use remora_engine::registry::{Credentials, Settings as Registries};
use remora_engine::session::{Command, Options, Session};
use remora_engine::world::{Isolation, Notice, Plugin};
use remora_startup::kubelet::{Config, Kubelet, Status};
use remora_startup::sim::{Act, Entry, Part, Trace, What};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Seek as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::oneshot;
use tokio::time::Instant as Due;

/// Nothing that is rehearsed takes longer.
const LIMIT: Duration = Duration::from_secs(150);
/// How often the actors' journal is read.
const READING: Duration = Duration::from_millis(20);
const TARGET: &str = "10.244.0.2";
const SECOND_TARGET: &str = "10.244.0.3";

/// Something seen, in milliseconds since the run began.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) at: f64,
    pub(crate) id: String,
    /// Whether the time is known to a millisecond only.
    pub(crate) coarse: bool,
}

/// Everything that was seen.
#[derive(Debug, Default)]
pub(crate) struct Performance {
    pub(crate) events: Vec<Seen>,
    /// States by actor, `:target` added where it has several.
    pub(crate) network: BTreeMap<String, Vec<(f64, String)>>,
    pub(crate) status: Option<Status>,
    pub(crate) troubles: Vec<String>,
}

fn images() -> PathBuf {
    remora_testkit::shared_folder().join("images")
}

/// The addresses of those outside, in place of their names.
pub(crate) fn place(word: &str) -> String {
    word.replace("SECOND", SECOND_TARGET).replace("TARGET", TARGET)
}

/// Plays it, from its creation to its end.
pub(crate) fn perform(play: &Play) -> Result<Performance, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let mut stage = Stage::open(play).await?;
        let outcome = tokio::time::timeout(LIMIT, stage.play()).await;
        stage.read_journal();
        match outcome {
            Ok(()) => Ok(stage.finish()),
            Err(_) => Err(format!("does not come to an end: {:?}", stage.finish().ids())),
        }
    })
}

impl Performance {
    /// Names of all events, in order, with their times.
    pub(crate) fn ids(&self) -> Vec<String> {
        let text = |e: &Seen| format!("{:.0} {}", e.at, e.id);
        self.events.iter().map(text).collect()
    }
}

struct Stage<'a> {
    play: &'a Play,
    _state: tempfile::TempDir,
    journal: fs::File,
    rest: String,
    session: Session,
    /// The wall clock when the run's began.
    base: SystemTime,
    subject: usize,
    due: Vec<(Due, Act)>,
    fired: Vec<bool>,
    plugged: Arc<Mutex<Vec<(Instant, &'static str)>>>,
    entries: Vec<Entry>,
    seen: Performance,
    over: bool,
}

type Answer = oneshot::Receiver<Result<Container, String>>;

impl<'a> Stage<'a> {
    async fn open(play: &'a Play) -> Result<Self, String> {
        let state = tempfile::tempdir().map_err(|e| e.to_string())?;
        let journal = state.path().join("journal");
        fs::create_dir(&journal).unwrap();
        fs::set_permissions(state.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&journal, fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(journal.join("events"), "").unwrap();
        fs::set_permissions(journal.join("events"), fs::Permissions::from_mode(0o666)).unwrap();
        let mut documents = vec![outside("outside")];
        if play.pod.to_string().contains(SECOND_TARGET) {
            documents.push(outside("second"));
        }
        let subject = documents.len();
        documents.push(crate::play::mounted(&play.pod, &journal));
        let reading = Reading {
            namespace: "default",
            cron_now: false,
        };
        let mut manifest = Manifest::read(&documents, reading);
        for (place, planned) in manifest.pods.iter_mut().enumerate().skip(1) {
            planned.after = Some(place - 1);
        }
        let plugged = Arc::new(Mutex::new(Vec::new()));
        let options = options(play, &state.path().join("run"), Arc::clone(&plugged));
        let session = Session::start(manifest, options).await;
        let session = session.map_err(|e| format!("{e}: {:?}", std::error::Error::source(&e)))?;
        Ok(Self {
            play,
            journal: fs::File::open(journal.join("events")).unwrap(),
            _state: state,
            rest: String::new(),
            base: SystemTime::now() - session.began.elapsed(),
            session,
            subject,
            due: Vec::new(),
            fired: vec![false; play.scenario.interventions.len()],
            plugged,
            entries: Vec::new(),
            seen: Performance::default(),
            over: false,
        })
    }

    async fn play(&mut self) {
        let mut reading = tokio::time::interval(READING);
        while !self.over {
            let next = self.due.iter().map(|(at, _)| *at).min();
            tokio::select! {
                notice = self.session.notices.recv() => match notice {
                    Some(notice) => self.notice(notice),
                    None => return,
                },
                _ = reading.tick() => self.read_journal(),
                () = until(next) => self.intervene().await,
            }
        }
    }

    fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::Happened(id, at, what) if id == self.subject => {
                let entry = Entry { at, what };
                for (at, id) in trace(self.play, vec![entry.clone()]).named(&self.play.scenario) {
                    // Processes speak for themselves; the rest is told by the engine.
                    let own = ["ctr:", "pod.", "ev.", "cni."].iter().any(|p| id.starts_with(p));
                    if own {
                        #[expect(clippy::cast_precision_loss, reason = "milliseconds of a test")]
                        self.saw(at as f64, id, true);
                    }
                }
                self.entries.push(entry);
            }
            Notice::Status(id, status) if id == self.subject => self.seen.status = Some(*status),
            Notice::Gone(id) if id == self.subject => self.over = true,
            Notice::Trouble(_, text) => self.seen.troubles.push(text),
            _ => {}
        }
    }

    fn saw(&mut self, at: f64, id: String, coarse: bool) {
        for (index, wish) in self.play.scenario.interventions.iter().enumerate() {
            if !self.fired[index] && wish.on == id {
                self.fired[index] = true;
                let due = Due::now() + Duration::from_millis(wish.after);
                self.due.push((due, wish.act.clone()));
            }
        }
        self.seen.events.push(Seen { at, id, coarse });
    }

    fn read_journal(&mut self) {
        let at = self.journal.stream_position().unwrap_or_default();
        let mut new = String::new();
        if self.journal.read_to_string(&mut new).is_err() {
            // A line is not whole yet.
            let _ = self.journal.seek(std::io::SeekFrom::Start(at));
            return;
        }
        self.rest.push_str(&new);
        while let Some((line, rest)) = self.rest.split_once('\n') {
            let line = line.to_owned();
            self.rest = rest.to_owned();
            self.line(&line);
        }
    }

    fn line(&mut self, line: &str) {
        let mut words = line.splitn(4, ' ');
        let mut next = || words.next().unwrap_or_default();
        let (nanos, name, instance, event) = (next(), next(), next(), next());
        let since = Duration::from_nanos(nanos.parse().unwrap_or_default());
        let base = self.base.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let at = since.saturating_sub(base).as_secs_f64() * 1000.0;
        let who = match instance {
            "1" => name.to_owned(),
            n => format!("{name}#{n}"),
        };
        if let Some(state) = event.strip_prefix("net=") {
            let (target, state) = state.split_once(' ').unwrap_or_default();
            let several = self.play.targets_of(name) > 1;
            let whose = if several {
                format!("{who}:{target}")
            } else {
                who.clone()
            };
            let states = self.seen.network.entry(whose).or_default();
            states.push((at, state.to_owned()));
        }
        self.saw(at, format!("{who}.{event}"), false);
    }

    async fn intervene(&mut self) {
        let now = Due::now();
        let mut acts = Vec::new();
        self.due.retain(|(at, act)| {
            let later = *at > now;
            if !later {
                acts.push(act.clone());
            }
            later
        });
        for act in acts {
            let order = match act {
                Act::Delete(grace) => Order::Delete(grace),
                Act::LoseSandbox => Order::LoseSandbox,
                Act::RestartKubelet => Order::RestartKubelet,
                Act::QuitProxy => {
                    let (order, answer) = quit_proxy();
                    // A container ends when all its processes have been waited for.
                    tokio::spawn(async move {
                        if let Ok(Ok(process)) = answer.await {
                            let _ = process.wait().await;
                        }
                    });
                    order
                }
                Act::End => {
                    self.over = true;
                    continue;
                }
            };
            self.session
                .commands
                .send(Command::Order(self.subject, order))
                .await
                .unwrap();
        }
    }

    /// A process exists from the moment its program was executed, and has its signal when it was sent: the engine
    /// may know that before the process says so.
    fn date_starts(&mut self) {
        for entry in &self.entries {
            let (What::Started(who) | What::Signalled(who)) = entry.what else {
                continue;
            };
            let named = trace(self.play, vec![entry.clone()]).named(&self.play.scenario);
            let id = named.into_iter().map(|(_, id)| id).next();
            let own = self.seen.events.iter_mut().find(|e| Some(&e.id) == id.as_ref());
            #[expect(clippy::cast_precision_loss, reason = "milliseconds of a test")]
            let known = entry.at as f64;
            if let Some(own) = own.filter(|own| who.actor.part == Part::Main && known < own.at) {
                own.at = known;
                own.coarse = true;
            }
        }
    }

    fn finish(mut self) -> Performance {
        let began = self.session.began;
        for (at, id) in self.plugged.lock().unwrap().drain(..) {
            let at = at.saturating_duration_since(began).as_secs_f64() * 1000.0;
            self.seen.events.push(Seen {
                at,
                id: id.to_owned(),
                coarse: false,
            });
        }
        self.date_starts();
        self.seen.events.sort_by(|a, b| a.at.total_cmp(&b.at));
        self.seen.settle();
        self.seen
    }
}

async fn until(at: Option<Due>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The proxy's own way to be told to go, from inside the pod.
fn quit_proxy() -> (Order, Answer) {
    let words = [
        "/tools/remora",
        "demo",
        "call",
        "http://127.0.0.1:15020/quitquitquit",
    ];
    let (reply, answer) = oneshot::channel();
    let order = Order::Exec {
        container: "istio-proxy".to_owned(),
        args: words.map(str::to_owned).to_vec(),
        env: Vec::new(),
        stdio: Stdio::Null,
        reply,
    };
    (order, answer)
}

fn trace(play: &Play, entries: Vec<Entry>) -> Trace {
    let kubelet = Kubelet::new(play.scenario.view.clone(), Config::default());
    Trace {
        entries,
        network: Vec::new(),
        status: kubelet.status().clone(),
        gone: false,
        end: 0,
    }
}

/// Somebody to call.
fn outside(name: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "outside", "image": "remora",
                "command": ["/tools/remora", "demo", "actor", "--as", name, "--journal", "/tmp",
                    "--banner", "8080", "--banner", "8081"],
                "volumeMounts": [{"name": "tools", "mountPath": "/tools", "readOnly": true}],
                "readinessProbe": {"tcpSocket": {"port": 8081}, "periodSeconds": 1},
            }],
            "volumes": [{"name": "tools", "hostPath": {"path": crate::play::tools()}}],
        },
    })
}

fn options(play: &Play, directory: &Path, plugged: Arc<Mutex<Vec<(Instant, &'static str)>>>) -> Options {
    let ambient = play
        .scenario
        .at_sandbox
        .as_ref()
        .is_some_and(remora_startup::network::Capture::is_ambient);
    let captured = play.scenario.at_sandbox.is_some();
    let name = play.name().to_owned();
    let plugin = Plugin::new(move |pod, network| {
        let told = |what| plugged.lock().unwrap().push((Instant::now(), what));
        if captured && remora_pod::object::name(pod) == name {
            if ambient {
                crate::ambient::set_up(network)?;
                told("ztunnel/ztunnel.proxy-ready");
            }
            told("cni/plugin.captured");
        }
        Ok(())
    });
    Options {
        directory: directory.to_owned(),
        store: images(),
        registries: Registries::default(),
        credentials: Credentials::default(),
        publish: Vec::new(),
        kubelet: Config {
            // As on a real kubelet a container gets as far as knowing its signals before it is stopped again.
            pass_delay: 100,
            ..play.scenario.kubelet.clone()
        },
        resolver: String::new(),
        upstream: Vec::new(),
        secret: b"rehearsal".to_vec(),
        cpu_millis: 1000,
        memory: 1 << 30,
        pull_first: false,
        egress: false,
        plugin: Some(plugin),
        private_mounts: false,
        runtime: None,
        isolation: Isolation::new(directory.join("seccomp")),
    }
}
