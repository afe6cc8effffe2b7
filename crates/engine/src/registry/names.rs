//! Addresses of registries, asked of the machine's name servers directly: a static program cannot load the C library's
//! resolver.

use hyper_util::client::legacy::connect::dns::Name;
use remora_proxy::dns::lookup::lookup;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use tower_service::Service;

/// Looks names up by `/etc/hosts` and `/etc/resolv.conf`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names;

impl Service<Name> for Names {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        Box::pin(async move {
            let found = find(name.as_str()).await?;
            // The connector puts the port in.
            let all: Vec<SocketAddr> = found.into_iter().map(|ip| SocketAddr::new(ip, 0)).collect();
            Ok(all.into_iter())
        })
    }
}

async fn find(host: &str) -> io::Result<Vec<IpAddr>> {
    match lookup(host).await {
        // RFC 6761: this name is this machine, whoever else says something.
        Err(_) if host == "localhost" => {
            Ok(vec![[127, 0, 0, 1].into(), std::net::Ipv6Addr::LOCALHOST.into()])
        }
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use super::Names;
    use hyper_util::client::legacy::connect::dns::Name;
    use std::str::FromStr as _;
    use tower_service::Service as _;

    #[test]
    fn this_machine_is_found_and_nobody_is_an_error() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut found = Names.call(Name::from_str("localhost").unwrap()).await.unwrap();
            assert!(found.all(|a| a.ip().is_loopback() && a.port() == 0));
            let nobody = Names.call(Name::from_str("registry.invalid").unwrap()).await;
            assert!(nobody.is_err());
        });
    }
}
