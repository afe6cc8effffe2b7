use super::*;
use proptest::prelude::*;

/// Inputs that once were trouble somewhere, or look like it.
const CORPUS: &[&str] = &[
    "",
    "\0",
    "-p\x0015001\0-z\x0015006\0-u\x001337\0-m\0REDIRECT\0-i\0*\0-x\0\0-b\0*\0-d\x0015090,15020",
    "-c\0eth0\n-j ACCEPT",
    "-c\0\"; drop",
    "-c\0a{b}}",
    "0;J",
    "-i\x000.0.0.0/0,::/0\0-x\0::/0",
    "-b\x001:65535\0-q\x0065535",
    "-k\0+\0-i\0*",
    "-t\x000xffffffff\0-r\x004294967295",
    "--=\0-=\0--dry-run=\0-n=x",
    "-npz\x001\x002",
    "10.0.0.0/4294967296",
    "1:2:3",
    "999999999999999999999999h1ns",
    "::ffff:1.2.3.4/96",
    "nameserver \u{a0}\nroot:::\n*nat\n:ISTIO_ -\n-A ISTIO_\n-A OUTPUT -j ISTIO_",
    "{\"spec\":{\"containers\":[{\"name\":\"istio-proxy\",\"env\":[1,{}]}],\"initContainers\":{}}}",
    "{\"spec\":{\"containers\":[],\"initContainers\":[{\"args\":[\"istio-iptables\",1,\"-p\"]}]}}",
];

fn all(bytes: &[u8]) {
    options(bytes);
    values(bytes);
    host(bytes);
    pod(bytes);
}

#[test]
fn the_corpus_is_harmless() {
    for input in CORPUS {
        all(input.as_bytes());
    }
}

proptest! {
    #[test]
    fn any_bytes_are_harmless(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        all(&bytes);
    }

    #[test]
    fn text_that_looks_like_values_is_harmless(text in "[-+0-9a-fx:./,*smh ]{0,24}") {
        all(text.as_bytes());
    }
}
