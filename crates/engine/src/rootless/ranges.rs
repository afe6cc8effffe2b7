//! `/etc/subuid` and `/etc/subgid`: which further ids a user may use.

/// Ids in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u32,
    pub(super) count: u32,
}

/// The largest range of a user, who may be listed by name or by number.
pub(super) fn of_user(text: &str, passwd: &str, uid: u32) -> Option<Range> {
    let number = uid.to_string();
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == number).then_some(name)
    });
    let ranges = text.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let who = fields.next()?;
        let first = fields.next()?.parse().ok()?;
        let count = fields.next()?.parse().ok()?;
        let ours = who == number || Some(who) == name;
        (ours && count > 0 && u32::checked_add(first, count).is_some()).then_some(Range { first, count })
    });
    ranges.max_by_key(|range| range.count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_name_and_by_number() {
        let passwd = "root:x:0:0::/root:/bin/sh\nme:x:1000:1000::/home/me:/bin/sh\n";
        let text =
            "# comment\nother:1:2\nme:100000:65536\n1000:300000:70000\nme:x:y\nme:4294967295:10\nme:5:0\n";
        let expected = Range {
            first: 300_000,
            count: 70_000,
        };
        assert_eq!(of_user(text, passwd, 1000), Some(expected));
        assert_eq!(of_user("me:7:8\n", passwd, 1000).unwrap().first, 7);
        assert_eq!(of_user(text, passwd, 33), None);
    }
}
