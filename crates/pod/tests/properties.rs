//! Promises of the YAML reader and writer that hold for every input.

use proptest::prelude::*;
use remora_pod::yaml::{self, Limits, Splitter};
use serde_json::{Map, Number, Value};

/// Texts that have gone wrong in one YAML implementation or another, alone and glued together.
fn nasty() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "\r",
        "\r\n",
        "'",
        "\"",
        ":",
        ": ",
        "#",
        " #",
        "-",
        "- ",
        "?",
        "? ",
        "!",
        "&a",
        "*a",
        "|",
        ">",
        "%",
        "@",
        "`",
        ",",
        "[",
        "]",
        "{",
        "}",
        "---",
        "...",
        "--- ",
        "\\",
        "é",
        "\u{2028}",
        "\u{85}",
        "\u{feff}",
        "😀",
        "\u{7}",
        "\u{7f}",
        "\0",
        "\u{a0}",
        "\u{fffd}",
        "0",
        "0644",
        "0x1",
        "1e3",
        ".5",
        "true",
        "on",
        "y",
        "null",
        "~",
        "12:30:45",
        "2024-01-02",
        "=",
        "<<",
        "word",
        "a b",
        "the quick brown fox jumps over the lazy dog",
    ];
    prop_oneof![
        prop::sample::select(PIECES).prop_map(str::to_owned),
        prop::collection::vec(prop::sample::select(PIECES), 0..12).prop_map(|pieces| pieces.concat()),
        prop::collection::vec(prop::sample::select(PIECES), 20..60).prop_map(|pieces| pieces.concat()),
        any::<String>(),
    ]
}

/// Floats that are whole numbers are integers for Go, so the generator leaves them out.
fn number() -> impl Strategy<Value = Number> {
    prop_oneof![
        any::<i64>().prop_map(Number::from),
        any::<u64>().prop_map(Number::from),
        any::<f64>()
            .prop_filter("a fraction, or too large for an integer", |x| {
                x.is_finite() && (x.fract() != 0.0 || x.abs() > 1e20)
            })
            .prop_filter_map("finite", Number::from_f64),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number().prop_map(Value::Number),
        nasty().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            prop::collection::vec((nasty(), inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Objects with the fields of pods in all the wrong places.
fn pod_like() -> impl Strategy<Value = Value> {
    const FIELDS: &[&str] = &[
        "kind",
        "items",
        "metadata",
        "labels",
        "annotations",
        "spec",
        "template",
        "jobTemplate",
        "containers",
        "initContainers",
        "name",
        "image",
        "restartPolicy",
        "ports",
        "containerPort",
        "hostPort",
        "env",
        "value",
        "valueFrom",
        "livenessProbe",
        "httpGet",
        "port",
        "exec",
        "command",
        "lifecycle",
        "preStop",
        "volumes",
        "secret",
        "volumeMounts",
        "mountPath",
        "resources",
        "limits",
        "requests",
        "cpu",
        "securityContext",
        "runAsUser",
        "matchLabels",
        "matchExpressions",
        "key",
        "operator",
        "values",
    ];
    const WORDS: &[&str] = &[
        "Pod",
        "List",
        "Deployment",
        "a",
        "A",
        "Always",
        "In",
        "Exists",
        "1",
        "1Gi",
        "/a",
        "",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        prop::sample::select(WORDS).prop_map(Value::from),
    ];
    leaf.prop_recursive(8, 80, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::Array),
            prop::collection::vec((prop::sample::select(FIELDS), inner), 0..6).prop_map(|fields| {
                Value::Object(
                    fields
                        .into_iter()
                        .map(|(name, value)| (name.to_owned(), value))
                        .collect(),
                )
            }),
        ]
    })
}

fn read(text: &str) -> Result<Value, yaml::ReadError> {
    Ok(yaml::parse_str(text)?.map_or(Value::Null, |document| document.value))
}

proptest! {
    #[test]
    fn what_is_written_reads_back(value in value()) {
        let text = yaml::write(&value);
        prop_assert_eq!(read(&text), Ok(value), "{}", text);
    }

    #[test]
    fn json_reads_as_itself(value in value()) {
        let text = serde_json::to_string_pretty(&serde_json::json!({"a": value})).unwrap();
        let expected: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(read(&text), Ok(expected));
    }

    #[test]
    fn splitting_loses_nothing(pieces in prop::collection::vec(nasty(), 0..20)) {
        let text = pieces.concat();
        let documents: Vec<_> = yaml::split(&text).collect();
        let joined: String = documents.iter().map(|document| &*document.text).collect();
        prop_assert_eq!(&joined, &text);
        for (index, document) in documents.iter().enumerate() {
            prop_assert_eq!(document.index, index);
        }
    }

    #[test]
    fn pieces_split_like_the_whole(pieces in prop::collection::vec(nasty(), 0..20)) {
        let text = pieces.concat();
        let whole: Vec<_> = yaml::split(&text).map(yaml::RawDocument::into_owned).collect();
        let mut splitter = Splitter::default();
        let mut parts: Vec<_> = pieces.iter().flat_map(|piece| splitter.push(piece)).collect();
        parts.extend(splitter.finish());
        prop_assert_eq!(parts, whole);
    }

    #[test]
    fn documents_of_a_stream_come_back_one_by_one(values in prop::collection::vec(value(), 1..5)) {
        let mut text = String::new();
        for value in &values {
            text.push_str("---
");
            yaml::write_to(&mut text, value);
        }
        let read: Vec<Value> = yaml::split(&text)
            .map(|raw| yaml::parse(&raw, Limits::default()).unwrap().map_or(Value::Null, |document| document.value))
            .collect();
        prop_assert_eq!(read, values);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        yaml::fuzz::round_trip(&bytes);
    }

    #[test]
    fn no_yaml_like_text_makes_it_panic(text in "[-a:{}\\[\\]&*!|>'\"#?,%~0.<\\\\ \n\t]{0,80}") {
        yaml::fuzz::round_trip(text.as_bytes());
    }

    #[test]
    fn no_glued_text_makes_it_panic(pieces in prop::collection::vec(nasty(), 0..20)) {
        yaml::fuzz::round_trip(pieces.concat().as_bytes());
    }

    #[test]
    fn every_mark_lies_inside_the_text(value in value()) {
        let text = yaml::write(&value);
        let lines = u32::try_from(text.lines().count()).unwrap();
        if let Some(document) = yaml::parse_str(&text).unwrap() {
            prop_assert!((1..=lines).contains(&document.marks.value().line));
        }
    }

    #[test]
    fn parsers_of_small_texts_do_not_panic(text in nasty()) {
        let _ = text.parse::<remora_pod::quantity::Quantity>().map(|quantity| quantity.to_string());
        let _ = remora_pod::duration::parse(&text).map(remora_pod::duration::format);
        let _ = text.parse::<remora_pod::Path>();
        let _ = remora_pod::image::Image::split(&text).to_string();
        let _ = remora_pod::cidr::parse(&text, true);
        let _ = remora_pod::ports::parse(&text, remora_pod::ports::Allow { wildcard: true, zero: true });
    }

    #[test]
    fn no_object_makes_a_judgement_panic(object in pod_like()) {
        for workload in remora_pod::workload::workloads(&object) {
            prop_assert!(workload.template.get(&object).is_some());
        }
        let _ = remora_pod::object::display_name(&object);
        let _ = remora_pod::selector::Selector::parse(Some(&object));
        for problem in remora_pod::validate::pod(&object, &object) {
            prop_assert!(!problem.message.is_empty() && !problem.path.is_root());
        }
    }

    #[test]
    fn quantities_print_what_they_are(text in "[+-]?[0-9]{0,12}(\\.[0-9]{0,12})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e[+-]?[0-9])?") {
        if let Ok(quantity) = text.parse::<remora_pod::quantity::Quantity>() {
            let printed = quantity.to_string();
            prop_assert_eq!(printed.parse::<remora_pod::quantity::Quantity>(), Ok(quantity), "{}", printed);
        }
    }

    #[test]
    fn durations_print_what_they_are(nanos in any::<i64>()) {
        prop_assert_eq!(remora_pod::duration::parse(&remora_pod::duration::format(nanos)), Ok(nanos));
    }

    #[test]
    fn paths_print_what_they_are(steps in prop::collection::vec(prop_oneof![
        nasty().prop_map(remora_pod::Segment::Key),
        any::<usize>().prop_map(remora_pod::Segment::Index),
    ], 0..6)) {
        let path: remora_pod::Path = steps.into_iter().collect();
        prop_assert_eq!(path.to_string().parse::<remora_pod::Path>(), Ok(path));
    }
}
