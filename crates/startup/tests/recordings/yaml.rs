//! Recordings are read as every other document is.

use remora_pod::yaml;
use serde_json::Value;

/// The first document of a text.
pub(crate) fn read(text: &str) -> Result<Value, String> {
    for raw in yaml::split(text) {
        if let Some(document) = yaml::parse(&raw, yaml::Limits::default()).map_err(|e| e.to_string())? {
            return Ok(document.value);
        }
    }
    Ok(Value::Null)
}
