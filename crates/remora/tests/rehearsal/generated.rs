//! Pods nobody thought of: everything about them is drawn from a seed.

use serde_json::{Value, json};

/// A small generator; the same seed gives the same pod everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((x ^ (x >> 31)) % sides as u64).unwrap()
    }

    fn one_in(&mut self, sides: usize) -> bool {
        self.roll(sides) == 0
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.roll(choices.len())]
    }
}

/// The scene of a seed.
pub(crate) fn scene(seed: u64) -> Value {
    let mut dice = Dice(seed);
    let mode = dice.of(&[
        "none",
        "classic",
        "hold",
        "cni",
        "native",
        "native",
        "native-cni",
        "ungated",
    ]);
    let job = dice.one_in(3);
    let mut inits = own_inits(&mut dice);
    let mut mains = own_mains(&mut dice, job);
    let proxy = proxy(&mut dice, mode);
    match mode {
        "none" => {}
        "classic" => {
            let at = dice.roll(inits.len() + 1);
            inits.insert(at, json!("capture"));
            mains.push(proxy);
        }
        "hold" => {
            inits.push(json!("capture"));
            mains.insert(0, proxy);
        }
        "cni" => mains.push(proxy),
        "native-cni" => {
            let at = dice.roll(inits.len() + 1);
            inits.insert(at, proxy);
        }
        _ => {
            let at = if dice.one_in(2) {
                0
            } else {
                dice.roll(inits.len() + 1)
            };
            inits.insert(at, proxy);
            inits.insert(at, json!("capture"));
        }
    }
    let captured = if mode.ends_with("cni") {
        "sandbox"
    } else {
        "container"
    };
    json!({
        "scene": format!("seed-{seed}"), "mode": mode, "captured": captured,
        "policy": if job { dice.of(&["Never", "OnFailure"]) } else { "Always" },
        "grace": dice.of(&[2, 3, 5]),
        "inits": inits, "mains": mains, "do": deeds(&mut dice),
    })
}

/// What is done from outside: everything ends some time after the beginning.
fn deeds(dice: &mut Dice) -> Value {
    let deleted = dice.of(&[3500, 5000, 7000]);
    let mut deeds = vec![json!({"when": "pod.create", "after": deleted, "act": "delete"})];
    if dice.one_in(12) {
        deeds.push(json!({"when": "pod.create", "after": 2500, "act": "lose-sandbox"}));
    }
    json!(deeds)
}

fn proxy(dice: &mut Dice, mode: &str) -> Value {
    let mut proxy = json!({"proxy": dice.of(&[200, 1000, 2000]), "drain": dice.of(&[0, 0, 1000])});
    if mode == "hold" {
        proxy["hold"] = json!(dice.of(&[800, 10_000, 10_000]));
    }
    if mode.starts_with("native") {
        proxy["native"] = json!("probe");
    } else if mode == "ungated" {
        proxy["native"] = json!("none");
    }
    if dice.one_in(4) {
        proxy["does"] = json!(dice.of(&[
            "--deaths 1 --first-life 100 --deaf",
            "--deaths 1 --first-life 2500",
            "--strict",
        ]));
    }
    proxy
}

fn own_inits(dice: &mut Dice) -> Vec<Value> {
    let mut inits = Vec::new();
    for (name, port) in [("init-a", 8100), ("init-b", 8101), ("init-c", 8102)]
        .iter()
        .take(dice.roll(4))
    {
        if dice.one_in(3) {
            let mut side = json!({"name": name, "sidecar": true});
            side["does"] = json!(format!("LOOK --serve {port} --drain {}", dice.of(&[0, 500])));
            if dice.one_in(3) {
                side["postStart"] = json!(format!("LOOK --life {}", dice.of(&[200, 800])));
            }
            if dice.one_in(3) {
                side["preStop"] = json!("LOOK --life 300");
            }
            inits.push(side);
            continue;
        }
        let does = dice.of(&[
            "LOOK --life 100",
            "LOOK --life 600",
            "LOOK --life 400 --needs-network",
            "LOOK --life 300 --deaths 1 --first-life 100",
            "--life 100",
        ]);
        let user = dice.of(&[1000, 1000, 1000, 1337]);
        inits.push(json!({"name": name, "does": does, "user": user}));
    }
    inits
}

fn own_mains(dice: &mut Dice, job: bool) -> Vec<Value> {
    let mut mains = Vec::new();
    for (name, port) in [("app-a", 8000), ("app-b", 8001)].iter().take(1 + dice.roll(2)) {
        let life = if job {
            dice.of(&["--life 800", "--life 1500 --code 3", "--life 600"])
        } else {
            dice.of(&["", "", "", "--deaths 1 --first-life 600", "--life 1200"])
        };
        let stop = dice.of(&[
            "--drain 0",
            "--drain 400",
            "--drain 1500",
            "--stop-code 4",
            "--ignore-stop",
        ]);
        let mut main = json!({"name": name, "does": format!("LOOK --serve {port} {life} {stop}")});
        if dice.one_in(3) {
            main["postStart"] = json!(dice.of(&[
                "LOOK --life 300",
                "LOOK --life 600 --needs-network",
                "--life 200 --code 1",
            ]));
        }
        if dice.one_in(3) {
            main["preStop"] = json!(dice.of(&["LOOK --life 400", "LOOK --life 300 --code 1"]));
        }
        if dice.one_in(3) {
            main["readinessProbe"] = json!({"tcpSocket": {"port": port}});
        }
        if dice.one_in(4) {
            main["startupProbe"] = json!("--life 50");
        }
        mains.push(main);
    }
    mains
}
