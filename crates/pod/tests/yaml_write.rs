//! Writing YAML as kubectl prints it. The strings were compared with kubectl's output for the same value; only the
//! Unicode line separator differs, see the module's departures.

use remora_pod::yaml;
use serde_json::{Value, json};

/// A string and its form as a value. `\n` stands for itself in the expectation.
const STRINGS: &[(&str, &str)] = &[
    ("", "\"\""),
    ("plain text", "plain text"),
    ("15020", "\"15020\""),
    ("0644", "\"0644\""),
    ("0x1", "\"0x1\""),
    ("0o7", "\"0o7\""),
    ("1e3", "\"1e3\""),
    ("1_000", "\"1_000\""),
    (".5", "\".5\""),
    (".inf", "\".inf\""),
    ("true", "\"true\""),
    ("on", "\"on\""),
    ("y", "\"y\""),
    ("~", "\"~\""),
    ("null", "\"null\""),
    ("12:30:45", "\"12:30:45\""),
    ("1:2:3.5", "\"1:2:3.5\""),
    ("2024-01-02", "\"2024-01-02\""),
    ("2024-01-02 3:4:5", "\"2024-01-02 3:4:5\""),
    ("2024-02-30", "2024-02-30"),
    ("1.2.3", "1.2.3"),
    ("10.0.0.0/8", "10.0.0.0/8"),
    ("25%", "25%"),
    ("=", "="),
    ("<<", "<<"),
    ("*", "'*'"),
    ("&a", "'&a'"),
    ("{\"a\":1}", "'{\"a\":1}'"),
    ("[a]", "'[a]'"),
    ("it's", "it's"),
    ("'it", "'''it'"),
    ("a: b", "'a: b'"),
    ("a:", "'a:'"),
    ("a:b", "a:b"),
    ("a #b", "'a #b'"),
    ("a#b", "a#b"),
    ("#a", "'#a'"),
    ("- a", "'- a'"),
    ("-a", "-a"),
    ("-", "'-'"),
    ("? a", "'? a'"),
    ("?a", "?a"),
    ("---", "'---'"),
    ("%a", "'%a'"),
    ("@a", "'@a'"),
    ("`a", "'`a'"),
    (" a", "' a'"),
    ("a ", "'a '"),
    ("a\tb", "\"a\\tb\""),
    ("a\\b", "a\\b"),
    ("a\"b", "a\"b"),
    ("\u{7}", "\"\\a\""),
    ("\u{1}", "\"\\x01\""),
    ("é", "é"),
    ("😀", "\"\\U0001F600\""),
    ("a\u{2028}b", "\"a\\Lb\""),
    ("\u{feff}", "\"\\uFEFF\""),
    ("a\r\nb", "\"a\\r\\nb\""),
    ("a\nb", "|-\n  a\n  b"),
    ("a\nb\n", "|\n  a\n  b"),
    ("a\n\n", "|+\n  a\n"),
    ("\n", "|2+\n"),
    (" a\nb", "|2-\n   a\n  b"),
    ("\na", "|2-\n\n  a"),
    ("a\n\n b\n", "|\n  a\n\n   b"),
    ("a \nb", "\"a \\nb\""),
    ("a\nb ", "\"a\\nb \""),
    ("a\n\tb", "\"a\\n\\tb\""),
];

#[test]
fn strings_are_quoted_as_go_quotes_them() {
    for (text, expected) in STRINGS {
        assert_eq!(
            yaml::write(&json!({"a": text})),
            format!("a: {expected}\n"),
            "{text:?}"
        );
    }
}

#[test]
fn keys_are_quoted_too() {
    let value = json!({"": 1, "on": 2, "8080": 3, "<<": 4, "a: b": 5, "x\ny": 6, "a\tb": 7});
    let expected =
        "\"\": 1\n\"<<\": 4\n\"8080\": 3\n\"a\\tb\": 7\n'a: b': 5\n\"on\": 2\n? |-\n  x\n  y\n: 6\n";
    assert_eq!(yaml::write(&value), expected);
}

#[test]
fn long_keys_stand_alone() {
    let (long, longer) = ("k".repeat(128), "k".repeat(129));
    let value = json!({long.clone(): 1, longer.clone(): {"a": 1, "b": [1, 2]}, "l": [{"m": 1}]});
    let expected = format!("{long}: 1\n? {longer}\n: a: 1\n  b:\n  - 1\n  - 2\nl:\n- m: 1\n");
    assert_eq!(yaml::write(&value), expected);
    assert_eq!(
        yaml::write(&json!({longer.clone(): [1, 2]})),
        format!("? {longer}\n: - 1\n  - 2\n")
    );
}

#[test]
fn structure() {
    let value = json!({
        "map": {"empty": {}, "list": [], "null": null},
        "items": [1, [2, [3]], {"a": [4], "b": {"c": 5}}, "x\ny\n", [], {}],
        "yes": [true, false],
    });
    let expected = "\
items:
- 1
- - 2
  - - 3
- a:
  - 4
  b:
    c: 5
- |
  x
  y
- []
- {}
map:
  empty: {}
  list: []
  \"null\": null
\"yes\":
- true
- false
";
    assert_eq!(yaml::write(&value), expected);
}

#[test]
fn a_document_can_be_anything() {
    for (value, expected) in [
        (json!(null), "null\n"),
        (json!("a"), "a\n"),
        (json!({}), "{}\n"),
        (json!([]), "[]\n"),
        (json!([1]), "- 1\n"),
        (json!("a\nb\n"), "|\n  a\n  b\n"),
    ] {
        assert_eq!(yaml::write(&value), expected);
    }
}

#[test]
fn numbers() {
    for (number, expected) in [
        (json!(1.0), "1"),
        (json!(-0.0), "0"),
        (json!(0.5), "0.5"),
        (json!(0.0001), "0.0001"),
        (json!(0.00001), "1e-05"),
        (json!(1_234_567.5), "1.2345675e+06"),
        (json!(123_456.5), "123456.5"),
        (json!(1e21), "1e+21"),
        (json!(1.5e300), "1.5e+300"),
        (json!(u64::MAX), "18446744073709551615"),
        (json!(i64::MIN), "-9223372036854775808"),
    ] {
        assert_eq!(yaml::write(&number), format!("{expected}\n"));
    }
}

#[test]
fn keys_come_in_natural_order() {
    let value = json!({"a10": 1, "a2": 2, "a-b": 3, "aB": 4, "ab": 5});
    assert_eq!(yaml::write(&value), "a-b: 3\na2: 2\na10: 1\naB: 4\nab: 5\n");
}

#[test]
fn long_scalars_fold_after_column_80() {
    let words = "word ".repeat(40);
    let words = words.trim_end();
    let folded = |text: &str| yaml::write(&json!({"key": {"inner": text}}));
    let plain = folded(words);
    assert_eq!(plain.lines().nth(1).unwrap().len(), 83);
    assert_eq!(
        plain.lines().nth(2).unwrap(),
        format!("    {}", "word ".repeat(16).trim_end())
    );
    // Nothing to fold at, nothing folded.
    assert_eq!(folded(&"x".repeat(200)).lines().count(), 2);
    // Two blanks are no place to fold a plain or single-quoted text.
    assert_eq!(folded(&format!("{}  b", "x".repeat(100))).lines().count(), 2);
    // Inside double quotes the second blank is kept by an escape.
    assert_eq!(
        folded(&format!("\t{}  b", "x".repeat(100))),
        format!("key:\n  inner: \"\\t{}\n    \\ b\"\n", "x".repeat(100))
    );
    // A key in one line with its value is never folded.
    let key = format!("{} {}", "x".repeat(100), "y".repeat(20));
    assert_eq!(yaml::write(&json!({key.clone(): 1})), format!("{key}: 1\n"));
}

#[test]
fn documents_can_be_appended() {
    let mut out = String::new();
    for value in [json!({"a": 1}), json!("x\n"), Value::Null] {
        yaml::write_to(&mut out, &value);
        out.push_str("---\n");
    }
    assert_eq!(out, "a: 1\n---\n|\n  x\n---\nnull\n---\n");
}
