//! One resource in encoded form.
//!
//! A mesh has many resources and each goes to many clients, so a resource is encoded once. The encoded fields of the
//! message are stored in one buffer, and a response is written from it without decoding. Name, version and aliases are
//! read from the same buffer instead of being stored twice.

use bytes::BufMut;
use prost::encoding::{WireType, decode_varint, encode_key, encode_varint, encoded_len_varint, key_len};
use std::sync::Arc;

/// Field numbers of `Resource` and `Any`.
const VERSION: u32 = 1;
const ANY: u32 = 2;
const NAME: u32 = 3;
const ALIASES: u32 = 4;
const ANY_TYPE: u32 = 1;
const ANY_VALUE: u32 = 2;
/// Bytes of the key of a field whose number is below 16.
const KEY_BYTES: usize = 1;

/// A resource and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// Version; differs when the content differs.
    pub version: String,
    /// The encoded message.
    pub bytes: Vec<u8>,
    /// Other names that a client can subscribe to it by.
    pub aliases: Vec<String>,
    /// Clients that may see it.
    pub audience: Audience,
}

/// The clients that may see a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Audience {
    /// Every client.
    #[default]
    Everyone,
    /// Clients of a namespace.
    Namespace(Arc<str>),
}

/// The resources that a client may see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum View {
    /// Every resource.
    #[default]
    Everything,
    /// Resources for every client and for this namespace.
    Namespace(String),
}

impl View {
    pub(super) fn shows(&self, resource: &Encoded) -> bool {
        match (self, &resource.audience) {
            (Self::Everything, _) | (_, Audience::Everyone) => true,
            (Self::Namespace(own), Audience::Namespace(theirs)) => **own == **theirs,
        }
    }
}

/// An encoded resource of a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The value field of the `Any`, then the fields of the `Resource`: name, version, aliases.
    fields: Box<[u8]>,
    audience: Audience,
    /// End of the value field, and the content lengths of it and of the two fields after it.
    value_end: u32,
    value: u32,
    name: u32,
    version: u32,
}

impl Encoded {
    /// `None` if the resource is larger than a message can be.
    pub(super) fn new(name: &str, resource: Versioned) -> Option<Self> {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).ok();
        let texts = [name, &resource.version].map(str::as_bytes);
        let aliases = resource.aliases.iter().map(|alias| field_len(alias.len()));
        let room = field_len(resource.bytes.len())
            + texts.iter().map(|text| field_len(text.len())).sum::<usize>()
            + aliases.sum::<usize>();
        let mut fields = Vec::with_capacity(room);
        put(ANY_VALUE, &resource.bytes, &mut fields);
        let value_end = length(&fields)?;
        put(NAME, name.as_bytes(), &mut fields);
        put(VERSION, resource.version.as_bytes(), &mut fields);
        for alias in &resource.aliases {
            put(ALIASES, alias.as_bytes(), &mut fields);
        }
        length(&fields)?;
        Some(Self {
            fields: fields.into_boxed_slice(),
            audience: resource.audience,
            value_end,
            value: length(&resource.bytes)?,
            name: length(name.as_bytes())?,
            version: length(resource.version.as_bytes())?,
        })
    }

    /// The encoded message.
    pub fn bytes(&self) -> &[u8] {
        let end = self.value_end as usize;
        self.slice(end - self.value as usize, end)
    }

    /// Name of the resource.
    pub fn name(&self) -> &str {
        // Encoded from a `&str`, so it is always valid UTF-8.
        std::str::from_utf8(self.name_bytes()).unwrap_or_default()
    }

    pub(super) fn name_bytes(&self) -> &[u8] {
        let end = self.name_end();
        self.slice(end - self.name as usize, end)
    }

    /// Version; differs when the content differs.
    pub fn version(&self) -> &str {
        let end = self.version_end();
        let text = self.slice(end - self.version as usize, end);
        std::str::from_utf8(text).unwrap_or_default()
    }

    /// Other names that a client can subscribe to it by.
    pub fn aliases(&self) -> impl Iterator<Item = &str> {
        let mut rest = self.slice(self.version_end(), self.fields.len());
        std::iter::from_fn(move || {
            let mut at = rest.get(KEY_BYTES..)?;
            let length = usize::try_from(decode_varint(&mut at).ok()?).ok()?;
            let (alias, after) = at.split_at_checked(length)?;
            rest = after;
            std::str::from_utf8(alias).ok()
        })
    }

    fn name_end(&self) -> usize {
        self.value_end as usize + field_len(self.name as usize)
    }

    fn version_end(&self) -> usize {
        self.name_end() + field_len(self.version as usize)
    }

    fn slice(&self, from: usize, to: usize) -> &[u8] {
        self.fields.get(from..to).unwrap_or_default()
    }

    /// Length of the message `Resource` of a type.
    pub(super) fn message_len(&self, type_url: &str) -> usize {
        field_len(self.any_len(type_url)) + self.fields.len() - self.value_end as usize
    }

    fn any_len(&self, type_url: &str) -> usize {
        field_len(type_url.len()) + self.value_end as usize
    }

    /// Writes the message `Resource` of a type.
    pub(super) fn write(&self, type_url: &str, out: &mut impl BufMut) {
        let (value, rest) = self.fields.split_at(self.value_end as usize);
        begin(ANY, self.any_len(type_url), out);
        put(ANY_TYPE, type_url.as_bytes(), out);
        out.put_slice(value);
        out.put_slice(rest);
    }
}

/// Encoded length of a field with `content` bytes.
pub(super) fn field_len(content: usize) -> usize {
    debug_assert_eq!(key_len(ALIASES), KEY_BYTES, "numbers below sixteen");
    KEY_BYTES + encoded_len_varint(content as u64) + content
}

/// Writes a field of bytes or text.
pub(super) fn put(number: u32, content: &[u8], out: &mut impl BufMut) {
    begin(number, content.len(), out);
    out.put_slice(content);
}

/// Writes key and length of a field.
pub(super) fn begin(number: u32, length: usize, out: &mut impl BufMut) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(length as u64, out);
}

#[cfg(test)]
mod tests {
    use super::{Audience, Encoded, Versioned};
    use crate::proto::discovery::Resource;
    use prost::Message as _;

    #[test]
    fn what_is_kept_can_be_read_and_is_the_message() {
        for aliases in [vec![], vec!["net/10.0.0.1".to_owned(), "a".repeat(300)]] {
            for length in [0, 1, 127, 128, 70_000] {
                let given = Versioned {
                    version: "0123456789abcdef".to_owned(),
                    bytes: vec![7; length],
                    aliases: aliases.clone(),
                    audience: Audience::Everyone,
                };
                let kept = Encoded::new("Kubernetes//Pod/shop/cart-0", given.clone()).unwrap();
                assert_eq!(kept.name(), "Kubernetes//Pod/shop/cart-0");
                assert_eq!((kept.version(), kept.bytes()), (&*given.version, &*given.bytes));
                assert_eq!(kept.aliases().collect::<Vec<_>>(), aliases);
                let mut message = Vec::new();
                kept.write("type/a", &mut message);
                assert_eq!(message.len(), kept.message_len("type/a"));
                let expected = Resource {
                    version: given.version,
                    resource: Some(prost_types::Any {
                        type_url: "type/a".to_owned(),
                        value: given.bytes,
                    }),
                    name: "Kubernetes//Pod/shop/cart-0".to_owned(),
                    aliases: aliases.clone(),
                };
                assert_eq!(Resource::decode(&*message).unwrap(), expected);
            }
        }
    }
}
