//! Reading YAML as Go's tooling does.
#![expect(clippy::unwrap_used, reason = "in a test a step that fails is a failure")]

use std::fmt::Write as _;

use remora_pod::Path;
use remora_pod::yaml::{self, Fault, Limits, ReadError, Splitter};
use serde_json::{Value, json};

fn read(text: &str) -> Value {
    yaml::parse_str(text)
        .unwrap()
        .map_or(Value::Null, |document| document.value)
}

fn fail(text: &str) -> ReadError {
    yaml::parse_str(text).unwrap_err()
}

/// Plain scalar and what it is in JSON. Compared with what kubectl prints for the same text.
const SCALARS: &[(&str, &str)] = &[
    ("0644", "420"),
    ("0o644", "420"),
    ("-0644", "-420"),
    ("0x1F", "31"),
    ("0b101", "5"),
    ("-0b11", "-3"),
    ("1_000", "1000"),
    ("08", "8"),
    ("+12", "12"),
    ("-0", "0"),
    ("1e3", "1000"),
    ("1.0", "1"),
    ("1.", "1"),
    (".5", "0.5"),
    ("-.5", "-0.5"),
    ("1.5e300", "1.5e300"),
    ("1e400", "\"1e400\""),
    ("9223372036854775807", "9223372036854775807"),
    ("18446744073709551615", "18446744073709551615"),
    ("123456789012345678901234567890", "1.2345678901234568e29"),
    ("0xFFFFFFFFFFFFFFFFFF", "\"0xFFFFFFFFFFFFFFFFFF\""),
    ("0x", "\"0x\""),
    ("0b12", "\"0b12\""),
    ("_1", "\"_1\""),
    ("+", "\"+\""),
    (".", "\".\""),
    ("on", "true"),
    ("On", "true"),
    ("oN", "\"oN\""),
    ("yes", "true"),
    ("y", "true"),
    ("Y", "true"),
    ("OFF", "false"),
    ("n", "false"),
    ("True", "true"),
    ("tRUE", "\"tRUE\""),
    ("~", "null"),
    ("null", "null"),
    ("NULL", "null"),
    ("nULL", "\"nULL\""),
    ("", "null"),
    ("12:30:45", "\"12:30:45\""),
    ("2024-01-02", "\"2024-01-02\""),
    ("2024-01-02T03:04:05Z", "\"2024-01-02T03:04:05Z\""),
    ("=", "\"=\""),
    ("1.2.3", "\"1.2.3\""),
    ("\"0644\"", "\"0644\""),
    ("'on'", "\"on\""),
    ("!!str 5", "\"5\""),
    ("!!int \"5\"", "5"),
    ("!!float 5", "5"),
    ("!!bool yes", "true"),
    ("!!null ''", "null"),
    ("!!binary aGVsbG8=", "\"hello\""),
    ("!own 5", "\"5\""),
    ("! 5", "\"5\""),
    ("!<tag:yaml.org,2002:str> 5", "\"5\""),
];

#[test]
fn scalars_mean_what_they_mean_to_go() {
    for (text, expected) in SCALARS {
        let expected: Value = serde_json::from_str(expected).unwrap();
        assert_eq!(read(&format!("a: {text}\n"))["a"], expected, "{text}");
    }
}

#[test]
fn keys_become_strings() {
    let value = read("1: a\n0x10: b\n1.5: c\non: d\n2024-01-02: f\n\"~\": g\n");
    assert_eq!(
        value,
        json!({"1": "a", "16": "b", "1.5": "c", "true": "d", "2024-01-02": "f", "~": "g"})
    );
    assert_eq!(
        fail("a:\n  ~: b\n").to_string(),
        "line 2, column 3: null cannot be a key at a"
    );
    assert_eq!(
        fail("? [x]\n: b\n").to_string(),
        "line 1, column 3: a list cannot be a key"
    );
    assert_eq!(
        fail("? {x: y}\n: b\n").to_string(),
        "line 1, column 3: a mapping cannot be a key"
    );
}

#[test]
fn merge_keys() {
    let value = read(
        "base: &b {a: 1, b: 2}\nx:\n  <<: *b\n  a: 3\nz:\n  a: 4\n  <<: [{a: 5, c: 6}, *b]\n'<<': text\n",
    );
    assert_eq!(value["x"], json!({"a": 3, "b": 2}));
    assert_eq!(value["z"], json!({"a": 4, "b": 2, "c": 6}));
    assert_eq!(value["<<"], "text");
    assert_eq!(
        fail("a:\n  <<: 1\n").to_string(),
        "line 2, column 3: merge key << needs a mapping or a list of mappings at a[\"<<\"]"
    );
}

#[test]
fn duplicate_keys_name_both_lines() {
    let error = fail("spec:\n  containers:\n  - image: x\n    name: a\n    image: y\n");
    assert_eq!(
        error.to_string(),
        "line 5, column 5: duplicate key \"image\" (first on line 3) at spec.containers[0]"
    );
    assert!(error.hint().is_some());
    assert_eq!(
        fail("1: a\n'1': b\n").to_string(),
        "line 2, column 1: duplicate key \"1\" (first on line 1)"
    );
    assert_eq!(
        fail("{\"a\": {\"b\": 1,\n \"b\": 2}}").to_string(),
        "line 2, column 2: duplicate key \"b\" (first on line 1) at a"
    );
}

#[test]
fn errors_have_a_place_and_say_what() {
    let cases = [
        ("a: .nan\n", "line 1, column 4: .nan has no JSON form at a"),
        ("a: -.inf\n", "line 1, column 4: -.inf has no JSON form at a"),
        (
            "a: !!int x\n",
            "line 1, column 4: cannot read \"x\" as !!int at a",
        ),
        (
            "a: !!binary ???\n",
            "line 1, column 4: cannot read \"???\" as !!binary at a",
        ),
        (
            "a: &x\n  b: *x\n",
            "line 2, column 6: alias refers to a node that contains it at a.b",
        ),
        (
            "a: 1\nb: x\0y\n",
            "line 2, column 5: control character U+0000 is not allowed",
        ),
        (
            "a: 1\n---\nb: 1\n",
            "line 3, column 1: a second document starts here",
        ),
        (
            "a: 1\rb: 2\r---\rc: 3\r",
            "line 3, column 1: a second document starts here",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(fail(text).to_string(), expected);
    }
    let syntax = fail("a: [1\nb: {\n");
    assert!(matches!(syntax.fault, Fault::Syntax(_)), "{syntax}");
}

#[test]
fn a_place_is_clickable() {
    let located = fail("a:\n  b: .nan\n").locate("app.yaml", 2);
    assert_eq!(
        located.to_string(),
        "app.yaml:2:6 (document 2, a.b): .nan has no JSON form"
    );
}

#[test]
fn budgets_hold() {
    let bomb = |width: usize, levels: usize| {
        let mut text = String::from("l0: &l0 [x]\n");
        for level in 1..levels {
            let aliases = vec![format!("*l{}", level - 1); width].join(", ");
            writeln!(text, "l{level}: &l{level} [{aliases}]").unwrap();
        }
        text
    };
    assert!(matches!(fail(&bomb(10, 12)).fault, Fault::TooManyNodes { .. }));
    let fat = format!(
        "a: &a {}\nb: [{}]\n",
        "x".repeat(1 << 20),
        vec!["*a"; 100].join(", ")
    );
    assert!(matches!(fail(&fat).fault, Fault::TooMuchText { .. }));
    for deep in [
        "[".repeat(200) + &"]".repeat(200),
        "{\"a\":".repeat(400),
        "- ".repeat(400),
        "{a: ".repeat(200) + &"}".repeat(200),
    ] {
        assert!(matches!(fail(&deep).fault, Fault::TooDeep { .. }), "{deep}");
    }
    // The event parser has a limit of its own for brackets.
    assert!(fail(&"[".repeat(400)).to_string().contains("recursion limit"));
    // Depth counts through aliases too.
    assert!(matches!(fail(&bomb(1, 140)).fault, Fault::TooDeep { .. }));
    let small = Limits {
        bytes: 10,
        ..Limits::default()
    };
    let raw = yaml::split("a: 1234567890\n").next().unwrap();
    assert!(matches!(
        yaml::parse(&raw, small).unwrap_err().fault,
        Fault::TooLarge { bytes: 14, limit: 10 }
    ));
}

#[test]
fn aliases_within_budget_are_copied() {
    assert_eq!(
        read("a: &x {b: [1]}\nc: *x\n"),
        json!({"a": {"b": [1]}, "c": {"b": [1]}})
    );
    assert_eq!(read("&k key: 1\nother: *k\n"), json!({"key": 1, "other": "key"}));
}

#[test]
fn json_documents() {
    let text = "{\n\t\"a\": \"\\ud83d\\ude00\\/\",\n\t\"b\": [18446744073709551615, 1.0, 1e3, -0.5, true, null]\n}\n";
    assert_eq!(
        read(text),
        json!({"a": "😀/", "b": [u64::MAX, 1, 1000, -0.5, true, null]})
    );
    assert_eq!(
        read("{a: b, c: [d, ], e}"),
        json!({"a": "b", "c": ["d"], "e": null})
    );
    let document = yaml::parse_str(text).unwrap().unwrap();
    let path: Path = "b[1]".parse().unwrap();
    let mark = document.marks.get(&path).unwrap().value();
    assert_eq!((mark.line, mark.column), (3, 30));
}

const PLACES: &str = "\
# comment
kind: Pod
shared: &shared
  image: x
spec:
  containers:
  - name: a
    <<: *shared
  - name: b
    env:
    - name: A
      value: |
        text
  other: *shared
";

#[test]
fn every_node_has_its_place() {
    let document = yaml::parse_str(PLACES).unwrap().unwrap();
    let places = [
        ("kind", (2, 1), (2, 7)),
        ("spec", (5, 1), (6, 3)),
        ("spec.containers[0]", (7, 5), (7, 5)),
        ("spec.containers[1].env[0].value", (12, 7), (13, 9)),
        // Written once, used twice.
        ("spec.containers[0].image", (4, 3), (4, 10)),
        ("spec.other.image", (4, 3), (4, 10)),
        ("spec.other", (14, 3), (3, 9)),
    ];
    for (path, key, value) in places {
        let marks = document.marks.get(&path.parse().unwrap()).unwrap();
        let found = [marks.key(), marks.value()].map(|mark| (mark.line, mark.column));
        assert_eq!(found, [key, value], "{path}");
    }
    let missing: Path = "spec.containers[1].image".parse().unwrap();
    assert!(document.marks.get(&missing).is_none());
    let place = document.place("a.yaml", 1, &missing);
    assert_eq!(
        place.to_string(),
        "a.yaml:9:5 (document 1, spec.containers[1].image)"
    );
}

#[test]
fn lines_count_from_the_start_of_the_file() {
    let raw = yaml::split("a: 1\n---\n\nb:\n  c: .inf\n").nth(1).unwrap();
    let error = yaml::parse(&raw, Limits::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 5, column 6: .inf has no JSON form at b.c"
    );
}

fn texts(text: &str) -> Vec<(usize, String)> {
    yaml::split(text)
        .map(|raw| (raw.line, raw.text.into_owned()))
        .collect()
}

#[test]
fn streams_are_cut_at_document_marks() {
    let cases: [(&str, &[(usize, &str)]); 11] = [
        ("", &[]),
        ("a: 1\n", &[(1, "a: 1\n")]),
        ("---\na: 1\n---\nb: 2", &[(1, "---\na: 1\n"), (3, "---\nb: 2")]),
        (
            "# c\n\n---\na\n--- # d\nb\n",
            &[(1, "# c\n\n---\na\n"), (5, "--- # d\nb\n")],
        ),
        ("%YAML 1.1\n---\na\n", &[(1, "%YAML 1.1\n---\na\n")]),
        ("a\n--- b\n", &[(1, "a\n"), (2, "--- b\n")]),
        ("a\n...\n# c\n---\nb\n", &[(1, "a\n...\n"), (3, "# c\n---\nb\n")]),
        ("a: |\n  ---\n  x\n", &[(1, "a: |\n  ---\n  x\n")]),
        ("---x\n----\n", &[(1, "---x\n----\n")]),
        (
            "---\r\na\r\n---\r\nb\r\n",
            &[(1, "---\r\na\r\n"), (3, "---\r\nb\r\n")],
        ),
        ("\u{feff}---\na\n---\n", &[(1, "\u{feff}---\na\n"), (3, "---\n")]),
    ];
    for (text, expected) in cases {
        let expected: Vec<(usize, String)> = expected
            .iter()
            .map(|(line, text)| (*line, (*text).to_owned()))
            .collect();
        assert_eq!(texts(text), expected, "{text:?}");
    }
}

#[test]
fn bodies_leave_the_marks_out() {
    let bodies: Vec<String> = yaml::split("# c\n---\na\n...\n--- # d\nb\n--- c\n")
        .map(|raw| raw.body().to_owned())
        .collect();
    assert_eq!(bodies, ["a\n", "b\n", "--- c\n"]);
}

#[test]
fn empty_documents_are_none() {
    for text in [
        "",
        "\n",
        "# only a comment\n",
        "---\n",
        "---\n...\n",
        "--- ~\n",
        "null\n",
        "\u{feff}",
        "%YAML 1.1\n---\n",
    ] {
        assert_eq!(yaml::parse_str(text), Ok(None), "{text:?}");
    }
    assert!(yaml::split("--- # c\n\n").all(|raw| raw.is_blank()));
    assert!(!yaml::split("--- x\n").all(|raw| raw.is_blank()));
}

#[test]
fn bom_and_windows_line_ends() {
    let raws: Vec<_> = yaml::split("\u{feff}a: 1\r\nb: |\r\n  x\r\n  y\r\n---\r\nc: 2\r\n").collect();
    let values: Vec<Value> = raws
        .iter()
        .map(|raw| yaml::parse(raw, Limits::default()).unwrap().unwrap().value)
        .collect();
    assert_eq!(values, [json!({"a": 1, "b": "x\ny\n"}), json!({"c": 2})]);
}

#[test]
fn a_stream_of_many_documents_is_held_one_at_a_time() {
    let mut splitter = Splitter::default();
    let (mut count, mut most) = (0, 0);
    for number in 0..10_000 {
        let text = format!("---\nkind: Pod\nmetadata:\n  name: p{number}\n");
        count += splitter.push(&text).len();
        most = most.max(splitter.pending_bytes());
    }
    assert_eq!(count + splitter.finish().len(), 10_000);
    assert!(most < 100, "{most}");
}

/// The column of every value used to be counted from the start of its line: 26 seconds for 1.4 MB in one line.
#[test]
fn json_in_one_long_line_is_read_in_one_go() {
    let text = format!("{{\"a\":[{}1]}}", "1,".repeat(200_000));
    let document = yaml::parse_str(&text).unwrap().unwrap();
    let last: Path = "a[200000]".parse().unwrap();
    assert_eq!(document.marks.get(&last).unwrap().value().column, 400_007);
}
