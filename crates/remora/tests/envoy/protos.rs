//! As much of Envoy's configuration as the tests need, with the interface's numbers.

use prost::Message;
use prost_types::{Any, Duration};

const PREFIX: &str = "type.googleapis.com/";

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Cluster {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "4")]
    connect_timeout: Option<Duration>,
    #[prost(message, optional, tag = "33")]
    load_assignment: Option<LoadAssignment>,
}

#[derive(Clone, PartialEq, Message)]
struct LoadAssignment {
    #[prost(string, tag = "1")]
    cluster_name: String,
    #[prost(message, repeated, tag = "2")]
    endpoints: Vec<Locality>,
}

#[derive(Clone, PartialEq, Message)]
struct Locality {
    #[prost(message, repeated, tag = "2")]
    endpoints: Vec<LbEndpoint>,
}

#[derive(Clone, PartialEq, Message)]
struct LbEndpoint {
    #[prost(message, optional, tag = "1")]
    endpoint: Option<Endpoint>,
}

#[derive(Clone, PartialEq, Message)]
struct Endpoint {
    #[prost(message, optional, tag = "1")]
    address: Option<Address>,
}

#[derive(Clone, PartialEq, Message)]
struct Address {
    #[prost(message, optional, tag = "1")]
    socket_address: Option<SocketAddress>,
}

#[derive(Clone, PartialEq, Message)]
struct SocketAddress {
    #[prost(string, tag = "2")]
    address: String,
    #[prost(uint32, tag = "3")]
    port: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Listener {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    address: Option<Address>,
    #[prost(message, repeated, tag = "3")]
    chains: Vec<Chain>,
    #[prost(int32, tag = "16")]
    direction: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Chain {
    #[prost(message, repeated, tag = "3")]
    filters: Vec<Filter>,
    #[prost(message, optional, tag = "6")]
    transport_socket: Option<TransportSocket>,
}

#[derive(Clone, PartialEq, Message)]
struct Filter {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "4")]
    typed_config: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct TransportSocket {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "3")]
    typed_config: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct TcpProxy {
    #[prost(string, tag = "1")]
    stat_prefix: String,
    #[prost(string, tag = "2")]
    cluster: String,
}

#[derive(Clone, PartialEq, Message)]
struct DownstreamTls {
    #[prost(message, optional, tag = "1")]
    common: Option<CommonTls>,
    /// `google.protobuf.BoolValue`.
    #[prost(message, optional, tag = "2")]
    require_client_certificate: Option<Yes>,
}

#[derive(Clone, PartialEq, Message)]
struct Yes {
    #[prost(bool, tag = "1")]
    value: bool,
}

#[derive(Clone, PartialEq, Message)]
struct CommonTls {
    #[prost(message, repeated, tag = "6")]
    certificates: Vec<SecretConfig>,
    #[prost(message, optional, tag = "7")]
    roots: Option<SecretConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct SecretConfig {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    source: Option<Source>,
}

#[derive(Clone, PartialEq, Message)]
struct Source {
    #[prost(message, optional, tag = "2")]
    api: Option<Api>,
    #[prost(int32, tag = "6")]
    version: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Api {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(message, repeated, tag = "4")]
    services: Vec<Service>,
    #[prost(int32, tag = "8")]
    version: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Service {
    #[prost(message, optional, tag = "1")]
    envoy: Option<EnvoyGrpc>,
}

#[derive(Clone, PartialEq, Message)]
struct EnvoyGrpc {
    #[prost(string, tag = "1")]
    cluster: String,
}

const V3: i32 = 2;
const GRPC: i32 = 2;
const INBOUND: i32 = 1;

fn any(name: &str, message: &impl Message) -> Any {
    Any {
        type_url: format!("{PREFIX}{name}"),
        value: message.encode_to_vec(),
    }
}

fn address(address: &str, port: u16) -> Address {
    Address {
        socket_address: Some(SocketAddress {
            address: address.to_owned(),
            port: port.into(),
        }),
    }
}

/// A cluster of one local port.
pub(crate) fn cluster(name: &str, port: u16) -> Cluster {
    let endpoint = Endpoint {
        address: Some(address("127.0.0.1", port)),
    };
    let locality = Locality {
        endpoints: vec![LbEndpoint {
            endpoint: Some(endpoint),
        }],
    };
    Cluster {
        name: name.to_owned(),
        connect_timeout: Some(Duration { seconds: 5, nanos: 0 }),
        load_assignment: Some(LoadAssignment {
            cluster_name: name.to_owned(),
            endpoints: vec![locality],
        }),
    }
}

fn secret(name: &str) -> SecretConfig {
    let service = Service {
        envoy: Some(EnvoyGrpc {
            cluster: "sds-grpc".to_owned(),
        }),
    };
    SecretConfig {
        name: name.to_owned(),
        source: Some(Source {
            api: Some(Api {
                kind: GRPC,
                services: vec![service],
                version: V3,
            }),
            version: V3,
        }),
    }
}

/// An inbound listener that speaks mutual TLS with the pod's certificate and passes bytes on to a cluster.
pub(crate) fn listener(name: &str, port: u16, cluster: &str) -> Listener {
    let tls = DownstreamTls {
        common: Some(CommonTls {
            certificates: vec![secret("default")],
            roots: Some(secret("ROOTCA")),
        }),
        require_client_certificate: Some(Yes { value: true }),
    };
    let proxy = TcpProxy {
        stat_prefix: "inbound".to_owned(),
        cluster: cluster.to_owned(),
    };
    Listener {
        name: name.to_owned(),
        address: Some(address("0.0.0.0", port)),
        chains: vec![Chain {
            filters: vec![Filter {
                name: "tcp".to_owned(),
                typed_config: Some(any(
                    "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                    &proxy,
                )),
            }],
            transport_socket: Some(TransportSocket {
                name: "tls".to_owned(),
                typed_config: Some(any(
                    "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                    &tls,
                )),
            }),
        }],
        direction: INBOUND,
    }
}
