//! YAML as Go's Kubernetes tooling reads and writes it.
//!
//! Reading goes in two steps: [`split`] (or [`Splitter`], which takes a file in pieces) cuts a text into raw
//! documents without understanding them, and [`parse`] turns one raw document into a value with the line and
//! column of every node. So a file of any number of documents needs memory for one of them only.
//!
//! Promised: scalars mean what they mean to `kubectl` (YAML 1.1 as go-yaml v2 has it: `0644` is 420, `on` is
//! true); a duplicate key, an alias bomb, or anything JSON cannot hold is an error with a line; [`write()`]
//! prints what `kubectl` would print, byte for byte, apart from the departures noted where they are made.
//!
//! Not kept: comments, key order, anchors and the style of scalars.

mod error;
pub mod fuzz;
mod go_float;
mod json;
mod marks;
mod read;
mod scalar;
mod split;
mod write;

pub use error::{Fault, Located, Place, ReadError};
pub use marks::{Mark, Marks};
pub use read::{Document, Limits, parse, parse_str};
pub use split::{RawDocument, Split, Splitter, split};
pub use write::{write, write_to};
