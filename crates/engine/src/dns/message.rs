//! DNS messages: reads one question, writes one answer. Never panics on any input.

use std::net::Ipv4Addr;

use crate::services::{Answer, Names};

const A: u16 = 1;
const CNAME: u16 = 5;
const SRV: u16 = 33;
const ANY: u16 = 255;
const INTERNET: u16 = 1;
/// Seconds an answer may be kept: endpoints come and go.
const LIFE: u32 = 1;
const NO_ERROR: u16 = 0;
const SERVER_FAILURE: u16 = 2;
const NO_SUCH_NAME: u16 = 3;
const NOT_IMPLEMENTED: u16 = 4;

/// A query with one question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    id: u16,
    recursion: bool,
    is_query: bool,
    /// The name asked for, without the final dot.
    pub name: String,
    kind: u16,
    /// The question as it came, to be repeated.
    raw: Vec<u8>,
}

impl Question {
    /// Reads a query; `None` for anything else.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
        let flags = word(2)?;
        if flags & 0x8000 != 0 || word(4)? != 1 {
            return None;
        }
        let (name, end) = read_name(bytes, 12)?;
        let (kind, class) = (word(end)?, word(end + 2)?);
        Some(Self {
            id: word(0)?,
            recursion: flags & 0x0100 != 0,
            is_query: flags & 0x7800 == 0 && (class == INTERNET || class == 255),
            name,
            kind,
            raw: bytes.get(12..end + 4)?.to_vec(),
        })
    }
}

/// A name and where it ends. Queries have no compressed names.
fn read_name(bytes: &[u8], mut at: usize) -> Option<(String, usize)> {
    let mut name = String::new();
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        if length == 0 {
            return Some((name, at));
        }
        if length > 63 || name.len() > 253 {
            return None;
        }
        let label = bytes.get(at..at + length)?;
        if !name.is_empty() {
            name.push('.');
        }
        name.push_str(&String::from_utf8_lossy(label));
        at += length;
    }
}

/// An answer under construction.
struct Response {
    bytes: Vec<u8>,
    answers: u16,
    limit: usize,
    truncated: bool,
}

impl Response {
    fn new(question: &Question, limit: usize) -> Self {
        let mut bytes = vec![0; 12];
        bytes[..2].copy_from_slice(&question.id.to_be_bytes());
        bytes[4..6].copy_from_slice(&1_u16.to_be_bytes());
        bytes.extend_from_slice(&question.raw);
        Self {
            bytes,
            answers: 0,
            limit,
            truncated: false,
        }
    }

    /// Adds a record about `owner`; one that does not fit is left out and the answer marked.
    fn record(&mut self, owner: &str, kind: u16, data: &[u8]) {
        let before = self.bytes.len();
        write_name(&mut self.bytes, owner);
        self.bytes.extend_from_slice(&kind.to_be_bytes());
        self.bytes.extend_from_slice(&INTERNET.to_be_bytes());
        self.bytes.extend_from_slice(&LIFE.to_be_bytes());
        let length = u16::try_from(data.len()).unwrap_or(0);
        self.bytes.extend_from_slice(&length.to_be_bytes());
        self.bytes.extend_from_slice(data);
        if self.bytes.len() > self.limit {
            self.bytes.truncate(before);
            self.truncated = true;
        } else {
            self.answers += 1;
        }
    }

    fn finish(mut self, question: &Question, code: u16) -> Vec<u8> {
        // A response, by an authority, with recursion to be had.
        let mut flags = 0x8000 | 0x0400 | 0x0080 | code;
        if question.recursion {
            flags |= 0x0100;
        }
        if self.truncated {
            flags |= 0x0200;
        }
        self.bytes[2..4].copy_from_slice(&flags.to_be_bytes());
        self.bytes[6..8].copy_from_slice(&self.answers.to_be_bytes());
        self.bytes
    }
}

fn write_name(bytes: &mut Vec<u8>, name: &str) {
    for label in name.split('.').filter(|l| !l.is_empty()) {
        let label = &label.as_bytes()[..label.len().min(63)];
        bytes.push(u8::try_from(label.len()).unwrap_or(0));
        bytes.extend_from_slice(label);
    }
    bytes.push(0);
}

/// The answer to a question from what is known.
pub fn answer(question: &Question, names: &Names, limit: usize) -> Vec<u8> {
    let mut response = Response::new(question, limit);
    if !question.is_query {
        return response.finish(question, NOT_IMPLEMENTED);
    }
    let wants = |kind: u16| question.kind == kind || question.kind == ANY;
    match names.get(&question.name) {
        None => return response.finish(question, NO_SUCH_NAME),
        Some(Answer::Addresses(addresses)) if wants(A) => {
            addresses_of(&mut response, &question.name, addresses);
        }
        Some(Answer::Ports(ports)) if wants(SRV) => {
            for (port, host) in ports {
                let mut data = vec![0, 0, 0, 0];
                data.extend_from_slice(&port.to_be_bytes());
                write_name(&mut data, host);
                response.record(&question.name, SRV, &data);
            }
        }
        Some(Answer::Alias(other)) => {
            let mut data = Vec::new();
            write_name(&mut data, other);
            response.record(&question.name, CNAME, &data);
            if let Some(Answer::Addresses(addresses)) = names.get(other)
                && wants(A)
            {
                addresses_of(&mut response, other, addresses);
            }
        }
        // The name exists, but has nothing of this kind: AAAA above all.
        Some(Answer::Addresses(_) | Answer::Ports(_)) => {}
    }
    response.finish(question, NO_ERROR)
}

fn addresses_of(response: &mut Response, owner: &str, addresses: &[Ipv4Addr]) {
    for address in addresses {
        response.record(owner, A, &address.octets());
    }
}

/// Says that no server could be asked.
pub fn failure(question: &Question) -> Vec<u8> {
    Response::new(question, usize::MAX).finish(question, SERVER_FAILURE)
}

#[cfg(test)]
mod tests {
    use super::{Question, answer};
    use crate::services::{self, Names};
    use serde_json::json;

    fn query(name: &str, kind: u16) -> Vec<u8> {
        let mut bytes = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        super::write_name(&mut bytes, name);
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&1_u16.to_be_bytes());
        bytes
    }

    fn names() -> Names {
        let document = json!({"metadata": {"name": "cart", "namespace": "shop"},
            "spec": {"clusterIP": "10.96.0.50", "ports": [{"name": "http", "port": 80}]}});
        Names::new(&services::read(&[document], "default"), &[])
    }

    fn ask(name: &str, kind: u16) -> (u16, u16, Vec<u8>) {
        let question = Question::read(&query(name, kind)).unwrap();
        let bytes = answer(&question, &names(), 512);
        let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        assert_eq!(word(0), 0xabcd);
        (word(2) & 15, word(6), bytes)
    }

    #[test]
    fn addresses_ports_and_names_that_do_not_exist() {
        let (code, answers, bytes) = ask("cart.shop.svc.cluster.local", super::A);
        assert_eq!((code, answers), (0, 1));
        assert!(bytes.ends_with(&[10, 96, 0, 50]));
        assert_eq!(&ask("cart.shop.svc.cluster.local", 28).0, &0);
        assert_eq!(ask("cart.shop.svc.cluster.local", 28).1, 0);
        assert_eq!(ask("nobody.shop.svc.cluster.local", super::A).0, 3);
        assert_eq!(ask("_http._tcp.cart.shop.svc.cluster.local", super::SRV).1, 1);
    }

    #[test]
    fn whatever_arrives_is_survived() {
        let whole = query("cart.shop.svc.cluster.local", super::A);
        for end in 0..whole.len() {
            assert!(Question::read(&whole[..end]).is_none(), "{end}");
        }
        let mut hostile = whole.clone();
        hostile[12] = 0xc0;
        assert!(Question::read(&hostile).is_none());
        assert!(Question::read(&[0xff; 600]).is_none());
    }

    #[test]
    fn what_does_not_fit_is_marked() {
        let question = Question::read(&query("cart.shop.svc.cluster.local", super::A)).unwrap();
        let bytes = answer(&question, &names(), 50);
        assert_eq!(bytes[2] & 2, 2);
        assert_eq!(bytes[7], 0);
    }
}
