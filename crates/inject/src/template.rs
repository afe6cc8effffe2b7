//! Custom templates: Go template text that renders to a pod patch, as in Istio's injector configuration.
//!
//! The built-in sidecar needs none of this. A template sees the same names as in Istio (`.Spec.Containers`,
//! `.ObjectMeta.Annotations`, `.Values.global…`) and the same functions. It runs with bounds on loops and output,
//! so a hostile one can fail but not hang.

mod context;
mod functions;

use crate::sidecar::Inputs;
use remora_pod::yaml;
use serde_json::Value;

/// Maximum size of a rendered template in bytes.
const MAX_OUTPUT_BYTES: usize = 4 << 20;
/// Maximum number of iterations of one `range`.
const MAX_RANGE_ITERATIONS: u64 = 100_000;

/// Why a template cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Not Go template syntax, or an unknown function.
    #[error("parse: {0}")]
    Parse(String),
    /// Failed while running.
    #[error("execute: {0}")]
    Execute(String),
    /// The result is not YAML.
    #[error("the rendered text is not YAML: {0}")]
    Output(String),
    /// The result is not a pod.
    #[error("the rendered text is not a map with metadata and spec")]
    NotAPod,
    /// The result is too long.
    #[error("the rendered text is longer than {MAX_OUTPUT_BYTES} bytes")]
    TooLong,
}

/// Renders a template to a pod patch.
pub(crate) fn render(name: &str, text: &str, inputs: &Inputs<'_>) -> Result<Value, TemplateError> {
    let template = gotmpl::Template::new(name)
        .max_range_iters(MAX_RANGE_ITERATIONS)
        .funcs(functions::table(inputs))
        .parse(text)
        .map_err(|e| TemplateError::Parse(e.to_string()))?;
    let mut output = Bounded::default();
    let data = context::data(inputs);
    if let Err(error) = template.execute_fmt(&mut output, &data) {
        return Err(if output.full {
            TemplateError::TooLong
        } else {
            TemplateError::Execute(error.to_string())
        });
    }
    // istio: a missing map key prints as this; in YAML it would become a string that no author intended.
    let text = output.text.replace("<no value>", "");
    let document = yaml::parse_str(&text).map_err(|e| TemplateError::Output(e.to_string()))?;
    match document.map(|d| d.value).unwrap_or_default() {
        Value::Null => Ok(serde_json::json!({})),
        value if value.is_object() => Ok(value),
        _ => Err(TemplateError::NotAPod),
    }
}

/// A string with a maximum length.
#[derive(Default)]
struct Bounded {
    text: String,
    full: bool,
}

impl std::fmt::Write for Bounded {
    fn write_str(&mut self, piece: &str) -> std::fmt::Result {
        if self.text.len() + piece.len() > MAX_OUTPUT_BYTES {
            self.full = true;
            return Err(std::fmt::Error);
        }
        self.text.push_str(piece);
        Ok(())
    }
}
