//! Published ports: connections to this machine's loopback go on into the run's mesh.

use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::visitor::Visit;

/// A published port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    /// Where this machine listens.
    pub listen: SocketAddr,
    /// `service`, `namespace/service`, or the name of a pod or of what made it.
    pub target: String,
    /// The port of the Service or pod.
    pub port: u16,
}

/// A text that is no published port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not [ADDRESS:]PORT:SERVICE[:PORT], like 9080:productpage:9080")]
pub struct ParsePublishError {
    text: String,
}

impl std::str::FromStr for Publish {
    type Err = ParsePublishError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| ParsePublishError {
            text: text.to_owned(),
        })
    }
}

fn parse(text: &str) -> Option<Publish> {
    let mut parts: Vec<&str> = text.split(':').collect();
    let address = if parts.len() > 2 && parts[0].contains('.') {
        parts.remove(0).parse().ok()?
    } else {
        std::net::IpAddr::from([127, 0, 0, 1])
    };
    let (first, target, last) = match parts[..] {
        [port, target] => (port, target, port),
        [port, target, last] => (port, target, last),
        _ => return None,
    };
    let port: u16 = last.parse().ok().filter(|p| *p > 0)?;
    (!target.is_empty()).then_some(())?;
    Some(Publish {
        listen: SocketAddr::new(address, first.parse().ok()?),
        target: target.to_owned(),
        port,
    })
}

/// Hands over connections of one published port for ever.
pub(crate) async fn serve(
    listener: TcpListener,
    visits: mpsc::UnboundedSender<Visit>,
    target: watch::Receiver<Option<SocketAddrV4>>,
) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // Nobody there: the client sees its own connection end.
        let Some(target) = *target.borrow() else { continue };
        if let Ok(client) = client.into_std() {
            // Whoever carries is gone only with the run.
            let _ = visits.send((client, target.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn published_ports() {
        let shown = |text: &str| parse(text).map(|p| format!("{} {} {}", p.listen, p.target, p.port));
        assert_eq!(
            shown("9080:productpage:80").as_deref(),
            Some("127.0.0.1:9080 productpage 80")
        );
        assert_eq!(
            shown("9080:shop/cart").as_deref(),
            Some("127.0.0.1:9080 shop/cart 9080")
        );
        assert_eq!(shown("0.0.0.0:1:a:2").as_deref(), Some("0.0.0.0:1 a 2"));
        for wrong in ["", "80", "x:a:1", "1::2", "1:a:0", "1:a:2:3:4"] {
            assert_eq!(shown(wrong), None, "{wrong}");
        }
    }
}
