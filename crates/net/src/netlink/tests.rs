use super::*;
use proptest::prelude::*;

#[test]
fn what_is_written_can_be_read() {
    let mut writer = Writer::default();
    writer.begin(0x1234, NLM_F_REQUEST, 7, &[1, 2, 3, 4]);
    writer.text(1, "eth0");
    writer.nested(2, |w| {
        w.host_u32(3, 5);
        w.net_u32(4, 6);
    });
    writer.end();
    writer.add_flags(NLM_F_ACK);
    writer.begin(0x1235, 0, 8, &[]);
    writer.end();
    let messages: Vec<Message<'_>> = Messages::new(writer.as_bytes()).collect();
    assert_eq!(messages.len(), 2);
    let first = &messages[0];
    assert_eq!(
        (first.kind, first.flags, first.sequence),
        (0x1234, NLM_F_REQUEST | NLM_F_ACK, 7)
    );
    let attributes = Attributes::new(&first.payload[4..]);
    assert_eq!(attributes.find(1).unwrap().text(), "eth0");
    let nested = attributes.find(2).unwrap().nested();
    assert_eq!(nested.find(3).unwrap().host_u32(), Some(5));
    assert_eq!(nested.find(4).unwrap().net_u32(), Some(6));
    assert!(nested.find(9).is_none());
    assert_eq!(messages[1].sequence, 8);
}

#[test]
fn truncated_and_lying_lengths_end_the_list() {
    let mut writer = Writer::default();
    writer.begin(1, 0, 1, &[]);
    writer.text(1, "abc");
    writer.end();
    let whole = writer.as_bytes();
    for length in 0..whole.len() {
        assert_eq!(Messages::new(&whole[..length]).count(), 0, "{length}");
    }
    let mut lying = whole.to_vec();
    lying[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
    assert_eq!(Messages::new(&lying).count(), 0);
    let mut empty = whole.to_vec();
    empty[..4].copy_from_slice(&3_u32.to_ne_bytes());
    assert_eq!(
        Messages::new(&empty).count(),
        0,
        "a length below the header's must not loop"
    );
    assert_eq!(Attributes::new(&[3, 0, 1, 0, 0]).count(), 0);
}

#[test]
fn errors_carry_the_kernels_message() {
    let mut payload = (-17_i32).to_ne_bytes().to_vec();
    payload.extend_from_slice(&[0; HEADER_LENGTH]);
    let mut text = Writer::default();
    text.text(1, "no such thing");
    text.host_u32(2, 52);
    payload.extend_from_slice(text.as_bytes());
    let flags = NLM_F_ACK_TLVS | NLM_F_CAPPED;
    let message = Message {
        kind: NLMSG_ERROR,
        flags,
        sequence: 3,
        payload: &payload,
    };
    let error = socket::error_of(&message).unwrap().unwrap_err();
    assert_eq!((error.errno, error.sequence, error.offset), (17, 3, Some(52)));
    assert!(
        error.exists() && error.to_string().contains("no such thing"),
        "{error}"
    );
    let success = Message {
        payload: &0_i32.to_ne_bytes(),
        ..message
    };
    assert!(socket::error_of(&success).unwrap().is_ok());
}

proptest! {
    #[test]
    fn bytes_from_anywhere_are_harmless(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        crate::fuzz::messages(&bytes);
    }
}
