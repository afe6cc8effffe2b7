//! What passes the wire of a pod.

use remora_net::Namespace;
use remora_net::packet::Capture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Listens to a pod's interface until it is asked what it heard.
pub(crate) struct Wire {
    stop: Arc<AtomicBool>,
    frames: JoinHandle<Vec<Vec<u8>>>,
}

impl Wire {
    /// The interface of the pod that a process is in.
    pub(crate) fn of_process(pid: u32) -> Self {
        let network = Namespace::of_process(pid).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let (ready, listening) = std::sync::mpsc::channel();
        let frames = std::thread::spawn(move || {
            network.enter().unwrap();
            let capture = Capture::open("eth0").unwrap();
            ready.send(()).unwrap();
            let mut frames = Vec::new();
            let mut buffer = vec![0; 1 << 16];
            while !told.load(Ordering::Relaxed) {
                if let Some(frame) = capture.next(&mut buffer, Duration::from_millis(100)).unwrap() {
                    frames.push(frame.to_vec());
                }
            }
            frames
        });
        listening.recv().unwrap();
        Self { stop, frames }
    }

    pub(crate) fn frames(self) -> Vec<Vec<u8>> {
        self.stop.store(true, Ordering::Relaxed);
        self.frames.join().unwrap()
    }
}

/// How many frames have these bytes.
pub(crate) fn with(frames: &[Vec<u8>], bytes: &[u8]) -> usize {
    let has = |frame: &&Vec<u8>| frame.windows(bytes.len()).any(|window| window == bytes);
    frames.iter().filter(has).count()
}

/// How many TCP segments go to or come from this port.
pub(crate) fn at_port(frames: &[Vec<u8>], port: u16) -> usize {
    let ports = |frame: &Vec<u8>| {
        let ip = frame.get(14..)?;
        let tcp = ip.get(usize::from(ip.first()? & 15) * 4..)?;
        let number = |at: usize| Some(u16::from_be_bytes([*tcp.get(at)?, *tcp.get(at + 1)?]));
        (*ip.get(9)? == 6).then_some((number(0)?, number(2)?))
    };
    let of_port = |frame: &&Vec<u8>| ports(frame).is_some_and(|(a, b)| a == port || b == port);
    frames.iter().filter(of_port).count()
}
