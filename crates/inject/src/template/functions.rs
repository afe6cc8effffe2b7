//! The functions Istio's templates call: its own, and the part of sprig they use.

use super::context::{plain, to_json};
use crate::multus;
use crate::sidecar::{Inputs, with_port};
use gotmpl::{FuncMap, TemplateError as GoError, Value as Go};
use remora_pod::yaml;
use serde_json::Value;
use std::sync::Arc;

type Outcome = Result<Go, GoError>;

/// All functions, bound to one pod.
pub(super) fn table(inputs: &Inputs<'_>) -> FuncMap {
    let mut map = FuncMap::new();
    for (name, function) in TEXT {
        insert(&mut map, name, *function);
    }
    for (name, function) in VALUES {
        insert(&mut map, name, *function);
    }
    let native = inputs.native;
    insert(&mut map, "native", move |_| Ok(Go::Bool(native)));
    let attributes = remora_attributes(inputs);
    insert(&mut map, "otelResourceAttributes", move |_| Ok(text(&attributes)));
    map
}

fn remora_attributes(inputs: &Inputs<'_>) -> String {
    if inputs.settings.mesh.enriches_service_attributes() {
        crate::sidecar::service_attributes(inputs)
    } else {
        String::new()
    }
}

fn insert(map: &mut FuncMap, name: &str, function: impl Fn(&[Go]) -> Outcome + Send + Sync + 'static) {
    map.insert(name.to_owned(), Arc::new(function));
}

fn text(value: &str) -> Go {
    Go::String(Arc::from(value))
}

/// An argument as text; missing and nil are empty.
fn arg(args: &[Go], index: usize) -> String {
    match args.get(index) {
        None | Some(Go::Nil) => String::new(),
        Some(value) => value.to_string(),
    }
}

fn arg_value(args: &[Go], index: usize) -> Go {
    args.get(index).cloned().unwrap_or(Go::Nil)
}

fn count(args: &[Go], index: usize) -> usize {
    let number = args.get(index).and_then(Go::as_int).unwrap_or_default();
    usize::try_from(number).unwrap_or_default().min(10_000)
}

fn fail(message: impl Into<String>) -> GoError {
    GoError::Exec(message.into())
}

type Entry = (&'static str, fn(&[Go]) -> Outcome);

/// Functions on texts. As in sprig the text comes last, so that it can be piped in.
const TEXT: &[Entry] = &[
    ("quote", |a| {
        Ok(text(&a.iter().map(quoted).collect::<Vec<_>>().join(" ")))
    }),
    ("squote", |a| {
        Ok(text(&format!("'{}'", arg(a, 0).replace('\'', "''"))))
    }),
    ("indent", |a| Ok(text(&indented(&arg(a, 1), count(a, 0))))),
    ("nindent", |a| {
        Ok(text(&format!("\n{}", indented(&arg(a, 1), count(a, 0)))))
    }),
    ("trim", |a| Ok(text(arg(a, 0).trim()))),
    ("trimAll", |a| {
        let cut: Vec<char> = arg(a, 0).chars().collect();
        Ok(text(arg(a, 1).trim_matches(cut.as_slice())))
    }),
    ("trimPrefix", |a| {
        Ok(text(arg(a, 1).strip_prefix(&arg(a, 0)).unwrap_or(&arg(a, 1))))
    }),
    ("trimSuffix", |a| {
        Ok(text(arg(a, 1).strip_suffix(&arg(a, 0)).unwrap_or(&arg(a, 1))))
    }),
    ("trunc", |a| {
        Ok(text(&arg(a, 1).chars().take(count(a, 0)).collect::<String>()))
    }),
    ("upper", |a| Ok(text(&arg(a, 0).to_uppercase()))),
    ("lower", |a| Ok(text(&arg(a, 0).to_lowercase()))),
    ("toLower", |a| Ok(text(&arg(a, 0).to_lowercase()))),
    ("replace", |a| {
        Ok(text(&arg(a, 2).replace(&arg(a, 0), &arg(a, 1))))
    }),
    ("hasPrefix", |a| Ok(Go::Bool(arg(a, 1).starts_with(&arg(a, 0))))),
    ("hasSuffix", |a| Ok(Go::Bool(arg(a, 1).ends_with(&arg(a, 0))))),
    // istio: its own `contains` takes the text first; sprig's takes it last. Either order finds either.
    ("contains", |a| {
        Ok(Go::Bool(
            arg(a, 1).contains(&arg(a, 0)) || arg(a, 0).contains(&arg(a, 1)),
        ))
    }),
    ("split", |a| {
        Ok(Go::List(arg(a, 1).split(&arg(a, 0)).map(text).collect()))
    }),
    ("splitList", |a| {
        Ok(Go::List(arg(a, 1).split(&arg(a, 0)).map(text).collect()))
    }),
    ("join", |a| {
        Ok(text(
            &list_of(a, 1)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(&arg(a, 0)),
        ))
    }),
    ("toString", |a| Ok(text(&arg(a, 0)))),
    ("directory", |a| {
        Ok(text(
            arg(a, 0).rsplit_once('/').map_or(".", |(directory, _)| directory),
        ))
    }),
    ("appendMultusNetwork", |a| {
        Ok(text(&multus::with_network(&arg(a, 0), &arg(a, 1))))
    }),
    ("excludeInboundPort", |a| {
        Ok(text(&with_port(&arg(a, 1), &arg(a, 0))))
    }),
    ("env", |a| Ok(text(&arg(a, 1)))),
];

/// Functions on values.
const VALUES: &[Entry] = &[
    ("default", |a| {
        Ok(if is_empty(&arg_value(a, 1)) {
            arg_value(a, 0)
        } else {
            arg_value(a, 1)
        })
    }),
    ("valueOrDefault", |a| {
        Ok(if arg(a, 0).is_empty() {
            arg_value(a, 1)
        } else {
            arg_value(a, 0)
        })
    }),
    ("coalesce", |a| {
        Ok(a.iter().find(|v| !is_empty(v)).cloned().unwrap_or(Go::Nil))
    }),
    ("empty", |a| Ok(Go::Bool(is_empty(&arg_value(a, 0))))),
    ("ternary", |a| {
        Ok(arg_value(a, usize::from(!arg_value(a, 2).is_truthy())))
    }),
    ("annotation", |a| Ok(annotation(a))),
    ("isset", |a| {
        Ok(Go::Bool(arg_value(a, 0).field(&arg(a, 1)).is_some()))
    }),
    ("hasKey", |a| {
        Ok(Go::Bool(arg_value(a, 0).field(&arg(a, 1)).is_some()))
    }),
    ("get", |a| {
        Ok(arg_value(a, 0).field(&arg(a, 1)).cloned().unwrap_or(Go::Nil))
    }),
    ("list", |a| Ok(Go::List(a.iter().cloned().collect()))),
    ("dict", |a| Ok(dictionary(a))),
    ("strdict", |a| Ok(dictionary(a))),
    ("toMap", |a| Ok(plain(&to_json(&arg_value(a, 0))))),
    ("mergeMaps", |a| Ok(merged(a))),
    ("merge", |a| Ok(merged(a))),
    ("omit", |a| Ok(omitted(a))),
    ("omitNil", |a| Ok(without_nil(&arg_value(a, 0)))),
    ("int", |a| Ok(Go::Int(arg(a, 0).parse().unwrap_or_default()))),
    ("int64", |a| Ok(Go::Int(arg(a, 0).parse().unwrap_or_default()))),
    ("add", |a| {
        Ok(Go::Int(
            a.iter().filter_map(Go::as_int).fold(0, i64::saturating_add),
        ))
    }),
    ("toJSON", |a| Ok(text(&to_json(&arg_value(a, 0)).to_string()))),
    ("toJson", |a| Ok(text(&to_json(&arg_value(a, 0)).to_string()))),
    ("structToJSON", |a| {
        Ok(text(&to_json(&arg_value(a, 0)).to_string()))
    }),
    ("protoToJSON", |a| {
        Ok(text(&to_json(&arg_value(a, 0)).to_string()))
    }),
    ("fromJSON", |a| from_json(&arg(a, 0))),
    ("fromJson", |a| from_json(&arg(a, 0))),
    ("toYaml", |a| {
        Ok(text(
            yaml::write(&to_json(&arg_value(a, 0))).trim_end_matches('\n'),
        ))
    }),
    ("fail", |a| Err(fail(arg(a, 0)))),
];

fn quoted(value: &Go) -> String {
    if matches!(value, Go::Nil) {
        "\"\"".to_owned()
    } else {
        Value::String(value.to_string()).to_string()
    }
}

fn indented(text: &str, spaces: usize) -> String {
    let pad = " ".repeat(spaces);
    text.split('\n')
        .map(|line| format!("{pad}{line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

fn list_of(args: &[Go], index: usize) -> Arc<[Go]> {
    match args.get(index) {
        Some(Go::List(items)) => Arc::clone(items),
        Some(Go::Nil) | None => Arc::from([]),
        Some(other) => Arc::from([other.clone()]),
    }
}

/// sprig: zero values count as empty.
fn is_empty(value: &Go) -> bool {
    !value.is_truthy()
}

/// `annotation META NAME DEFAULT`.
fn annotation(args: &[Go]) -> Go {
    let annotations = arg_value(args, 0)
        .field("annotations")
        .cloned()
        .unwrap_or(Go::Nil);
    match annotations.field(&arg(args, 1)) {
        Some(value) => value.clone(),
        None => text(&arg(args, 2)),
    }
}

fn dictionary(args: &[Go]) -> Go {
    let pairs = args
        .chunks_exact(2)
        .map(|pair| (Arc::from(arg(pair, 0)), arg_value(pair, 1)));
    Go::Map(Arc::new(pairs.collect()))
}

fn merged(args: &[Go]) -> Go {
    let mut out = std::collections::BTreeMap::new();
    for map in args
        .iter()
        .filter_map(|v| if let Go::Map(map) = v { Some(map) } else { None })
    {
        out.extend(map.iter().map(|(key, value)| (Arc::clone(key), value.clone())));
    }
    Go::Map(Arc::new(out))
}

fn omitted(args: &[Go]) -> Go {
    let Some(Go::Map(map)) = args.first() else {
        return Go::Nil;
    };
    let names: Vec<String> = args.iter().skip(1).map(ToString::to_string).collect();
    let kept = map.iter().filter(|(key, _)| !names.iter().any(|n| n == &***key));
    Go::Map(Arc::new(
        kept.map(|(key, value)| (Arc::clone(key), value.clone()))
            .collect(),
    ))
}

fn without_nil(value: &Go) -> Go {
    match value {
        Go::Map(map) => {
            let kept = map.iter().filter(|(_, v)| !matches!(v, Go::Nil));
            Go::Map(Arc::new(
                kept.map(|(key, value)| (Arc::clone(key), without_nil(value)))
                    .collect(),
            ))
        }
        other => other.clone(),
    }
}

fn from_json(source: &str) -> Outcome {
    match yaml::parse_str(source) {
        Ok(document) => Ok(plain(&document.map(|d| d.value).unwrap_or_default())),
        Err(error) => Err(fail(format!("fromJSON: {error}"))),
    }
}
