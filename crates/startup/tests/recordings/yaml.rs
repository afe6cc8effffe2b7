//! Just enough YAML for the recordings: maps, lists, plain scalars.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

/// Reads one document.
pub(crate) fn read(text: &str) -> Result<Value, String> {
    let mut open: Vec<(Value, Option<String>)> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, _) = event.map_err(|e| e.to_string())?;
        let done = match event {
            Event::MappingStart(..) => {
                open.push((Value::Object(Map::new()), None));
                continue;
            }
            Event::SequenceStart(..) => {
                open.push((Value::Array(Vec::new()), None));
                continue;
            }
            Event::Scalar(text, style, ..) => scalar(&text, style),
            Event::MappingEnd | Event::SequenceEnd => open.pop().map_or(Value::Null, |(v, _)| v),
            _ => continue,
        };
        match open.last_mut() {
            None => return Ok(done),
            Some((Value::Array(items), _)) => items.push(done),
            Some((Value::Object(map), key)) => match key.take() {
                None => *key = Some(done.as_str().map_or_else(|| done.to_string(), str::to_owned)),
                Some(key) => _ = map.insert(key, done),
            },
            Some(_) => return Err("a scalar cannot hold anything".to_owned()),
        }
    }
    Ok(Value::Null)
}

fn scalar(text: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return Value::String(text.to_owned());
    }
    match text {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        "null" | "~" | "" => Value::Null,
        _ => text
            .parse::<i64>()
            .map_or_else(|_| Value::String(text.to_owned()), Value::from),
    }
}
