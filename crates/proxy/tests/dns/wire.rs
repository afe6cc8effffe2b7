//! Messages as a client writes and reads them, written apart from what is tested.

use std::net::IpAddr;

pub(crate) const A: u16 = 1;
pub(crate) const AAAA: u16 = 28;
pub(crate) const TXT: u16 = 16;

/// A question, with extensions if a size is given.
pub(crate) fn question(id: u16, name: &str, kind: u16, size: Option<u16>) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(size.is_some())]);
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0, 1]);
    if let Some(size) = size {
        bytes.extend([0, 0, 41]);
        bytes.extend(size.to_be_bytes());
        bytes.extend([0; 6]);
    }
    bytes
}

/// What an answer says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) id: u16,
    pub(crate) code: u8,
    pub(crate) truncated: bool,
    pub(crate) question: Vec<u8>,
    pub(crate) meant: Option<String>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) ttls: Vec<u32>,
    pub(crate) extended: bool,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let taken = self.bytes.get(self.at..self.at + count)?;
        self.at += count;
        Some(taken)
    }

    fn half(&mut self) -> Option<u16> {
        self.take(2).map(|b| u16::from_be_bytes([b[0], b[1]]))
    }

    /// Follows pointers backwards only.
    fn name(&mut self) -> Option<String> {
        let mut labels = Vec::new();
        let (mut at, mut after) = (self.at, None);
        loop {
            let length = usize::from(*self.bytes.get(at)?);
            if length >= 0xc0 {
                let target = (length & 0x3f) << 8 | usize::from(*self.bytes.get(at + 1)?);
                after = after.or(Some(at + 2));
                if target >= at {
                    return None;
                }
                at = target;
                continue;
            }
            at += 1;
            if length == 0 {
                self.at = after.unwrap_or(at);
                return Some(labels.join("."));
            }
            let label = self.bytes.get(at..at + length)?;
            labels.push(String::from_utf8_lossy(label).into_owned());
            at += length;
        }
    }
}

/// Reads a whole answer; nothing may be left over, and every record must belong to the name that was asked for.
pub(crate) fn read(bytes: &[u8]) -> Option<Answer> {
    let mut reader = Reader { bytes, at: 0 };
    let (id, flags) = (reader.half()?, reader.half()?);
    if flags & 0x8000 == 0 {
        return None;
    }
    let counts = [reader.half()?, reader.half()?, reader.half()?, reader.half()?];
    let mut answer = Answer {
        id,
        code: u8::try_from(flags & 15).unwrap(),
        truncated: flags & 0x200 != 0,
        question: Vec::new(),
        meant: None,
        addresses: Vec::new(),
        ttls: Vec::new(),
        extended: false,
    };
    let mut owner = String::new();
    for _ in 0..counts[0] {
        let start = reader.at;
        owner = reader.name()?;
        reader.take(4)?;
        answer.question = bytes[start..reader.at].to_vec();
    }
    for _ in 0..u32::from(counts[1]) + u32::from(counts[2]) + u32::from(counts[3]) {
        let name = reader.name()?;
        let (kind, _class) = (reader.half()?, reader.half()?);
        let ttl = reader
            .take(4)
            .map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))?;
        let length = usize::from(reader.half()?);
        if kind == 41 {
            answer.extended = true;
            reader.take(length)?;
            continue;
        }
        if !name.eq_ignore_ascii_case(&owner) {
            return None;
        }
        answer.ttls.push(ttl);
        match (kind, length) {
            (A, 4) => answer
                .addresses
                .push(<[u8; 4]>::try_from(reader.take(4)?).ok()?.into()),
            (AAAA, 16) => answer
                .addresses
                .push(<[u8; 16]>::try_from(reader.take(16)?).ok()?.into()),
            (5, _) => {
                owner = reader.name()?;
                answer.meant = Some(owner.clone());
            }
            _ => return None,
        }
    }
    (reader.at == bytes.len()).then_some(answer)
}

/// The question's name of a message to a server, in small letters, and its type.
pub(crate) fn asked(bytes: &[u8]) -> (String, u16) {
    let mut reader = Reader { bytes, at: 12 };
    (
        reader.name().unwrap().to_ascii_lowercase(),
        reader.half().unwrap(),
    )
}

/// A server's answer: the question repeated, these addresses, perhaps not whole.
pub(crate) fn reply(question: &[u8], code: u8, addresses: &[IpAddr], truncated: bool) -> Vec<u8> {
    let mut reader = Reader {
        bytes: question,
        at: 12,
    };
    reader.name().unwrap();
    let end = reader.at + 4;
    let mut bytes = question[..2].to_vec();
    bytes.extend([0x81 | if truncated { 2 } else { 0 }, 0x80 | code, 0, 1]);
    bytes.extend(u16::try_from(addresses.len()).unwrap().to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(&question[12..end]);
    for address in addresses {
        bytes.extend([
            0xc0,
            12,
            0,
            if address.is_ipv4() { 1 } else { 28 },
            0,
            1,
            0,
            0,
            0,
            7,
        ]);
        match address {
            IpAddr::V4(v4) => {
                bytes.extend([0, 4]);
                bytes.extend(v4.octets());
            }
            IpAddr::V6(v6) => {
                bytes.extend([0, 16]);
                bytes.extend(v6.octets());
            }
        }
    }
    bytes
}
