use super::json::timestamp;
use super::log::{Format, Level, Log};
use super::{Direction, Party, Reason, Record};
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

const PATIENCE: Duration = Duration::from_mins(1);

fn record() -> Record {
    Record {
        began: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000),
        direction: Direction::Outbound,
        source: "10.0.0.1:1000".parse().unwrap(),
        source_party: Party {
            workload: Some("web".to_owned()),
            namespace: Some("shop".to_owned()),
        },
        source_id: Some("spiffe://td/ns/shop/sa/web".parse().unwrap()),
        destination: "10.96.0.2:80".parse().unwrap(),
        chosen: Some("10.0.0.2:8080".parse().unwrap()),
        destination_party: Party::default(),
        destination_id: Some("spiffe://td/ns/shop/sa/cart".parse().unwrap()),
        service: Some("cart".to_owned()),
        forward: 10,
        backward: 200,
        duration: Duration::from_millis(3),
        on_trial: None,
        reason: None,
        error: None,
    }
}

#[test]
fn a_line_is_one_line_and_says_who_and_how_much() {
    assert_eq!(
        record().to_string(),
        "src.addr=10.0.0.1:1000 src.identity=\"spiffe://td/ns/shop/sa/web\" dst.addr=10.96.0.2:80 \
         dst.service=\"cart\" dst.identity=\"spiffe://td/ns/shop/sa/cart\" direction=outbound bytes_sent=10 \
         bytes_recv=200 duration=\"3ms\""
    );
    assert_eq!(
        record().json(),
        "{\"time\":\"2001-09-09T01:46:40.003000Z\",\"level\":\"info\",\"scope\":\"access\",\
         \"message\":\"connection complete\",\"src.addr\":\"10.0.0.1:1000\",\"src.workload\":\"web\",\
         \"src.namespace\":\"shop\",\"src.identity\":\"spiffe://td/ns/shop/sa/web\",\"dst.addr\":\"10.96.0.2:80\",\
         \"dst.chosen\":\"10.0.0.2:8080\",\"dst.service\":\"cart\",\"dst.identity\":\"spiffe://td/ns/shop/sa/cart\",\
         \"direction\":\"outbound\",\"bytes_sent\":10,\"bytes_recv\":200,\"duration\":\"3ms\",\
         \"response_flags\":\"-\"}\n"
    );
    let hostile = Record {
        error: Some("a\"\nsrc.addr=1.2.3.4:5".to_owned()),
        reason: Some(Reason::Denied),
        direction: Direction::Inbound,
        ..record()
    };
    let line = hostile.to_string();
    assert!(!line.contains('\n') && line.contains("bytes_sent=200"), "{line}");
    let line = hostile.json();
    assert_eq!(line.find('\n'), Some(line.len() - 1), "{line}");
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(value["error"], "a\"\nsrc.addr=1.2.3.4:5");
    assert_eq!(
        (&value["reason"], &value["response_flags"]),
        (&"denied".into(), &"DENY".into())
    );
    assert_eq!(
        (&value["bytes_sent"], &value["level"]),
        (&200.into(), &"error".into())
    );
}

#[test]
fn dates_are_those_of_the_calendar() {
    let cases = [
        (0, "1970-01-01T00:00:00.000000Z"),
        (951_782_399, "2000-02-28T23:59:59.000000Z"),
        (951_782_400, "2000-02-29T00:00:00.000000Z"),
        (951_868_800, "2000-03-01T00:00:00.000000Z"),
        (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        (1_735_689_599, "2024-12-31T23:59:59.000000Z"),
    ];
    for (seconds, text) in cases {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(timestamp(time), text);
    }
}

#[test]
fn reasons_can_be_told_apart() {
    let mut codes = Reason::ALL.map(Reason::code).to_vec();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), Reason::ALL.len());
}

/// Writes only when it is told to.
struct Gate {
    open: Receiver<()>,
    written: Arc<Mutex<Vec<u8>>>,
    reached: Sender<()>,
}

impl Write for Gate {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.reached.send(());
        // A gate that is gone is open.
        let _ = self.open.recv();
        self.written.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_stops_costs_lines_and_nobody_waits() {
    let (open, gate) = channel();
    let (reached, stuck) = channel();
    let written = Arc::new(Mutex::new(Vec::new()));
    let out = Gate {
        open: gate,
        written: Arc::clone(&written),
        reached,
    };
    let log = Log::new(out, Level::Info).unwrap();
    log.record(&record());
    stuck.recv_timeout(PATIENCE).unwrap();
    for _ in 0..5000 {
        log.record(&record());
    }
    assert_eq!(log.dropped(), 5000 - 4096);
    assert!(!log.flush(Duration::from_millis(10)));
    drop(open);
    assert!(log.flush(PATIENCE));
    drop(log);
    while !String::from_utf8_lossy(&written.lock().unwrap()).contains("\"count\":904") {
        std::thread::yield_now();
    }
}

/// Sends on what is written.
struct Out(Sender<Vec<u8>>);
impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.send(bytes.to_vec());
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn levels_say_which_lines_are_written() {
    let (sender, lines) = channel();
    let log = Log::new(Out(sender), Level::Error).unwrap();
    log.record(&record());
    let failed = Record {
        error: Some("no".to_owned()),
        ..record()
    };
    log.record(&failed);
    log.set_level(Level::Off);
    log.record(&failed);
    log.set_level(Level::Info);
    assert_eq!(log.level(), Level::Info);
    log.record(&record());
    drop(log);
    let levels: Vec<bool> = lines
        .iter()
        .map(|line| String::from_utf8_lossy(&line).contains("\"level\":\"error\""))
        .collect();
    assert_eq!(levels, [true, false]);
}

#[test]
fn text_has_the_time_and_the_same_words() {
    let (sender, lines) = channel();
    let log = Log::with_format(Out(sender), Level::Info, Format::Text).unwrap();
    let mut record = record();
    record.error = Some("broke\noff".to_owned());
    log.record(&record);
    assert!(log.flush(PATIENCE));
    let line = String::from_utf8(lines.recv().unwrap()).unwrap();
    let (time, rest) = line.split_once(' ').unwrap();
    assert_eq!(time, timestamp(record.began + record.duration));
    assert_eq!(rest, format!("{record}\n"));
    assert_eq!(line.matches('\n').count(), 1, "{line}");
}
