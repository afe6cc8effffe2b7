//! Identity and addresses of the pod.

use super::read::Environment;
use super::{Inputs, ProxyConfig, SettingsError};
use remora_mtls::{SpiffeId, TrustDomains};
use std::net::IpAddr;

pub(super) fn identity(
    inputs: &Inputs,
    config: &ProxyConfig,
    warnings: &mut Vec<String>,
) -> Result<(SpiffeId, TrustDomains), SettingsError> {
    let env = Environment(&inputs.env);
    let namespace = env.required("POD_NAMESPACE")?;
    let account = env.text("SERVICE_ACCOUNT").unwrap_or_else(|| {
        warnings.push("SERVICE_ACCOUNT is not set: taken for `default`".to_owned());
        "default"
    });
    let domain = env
        .text("TRUST_DOMAIN")
        .or_else(|| inputs.flags.get("trust-domain"))
        .or_else(|| config.mesh_text("/trustDomain"))
        .unwrap_or("cluster.local");
    let wrong = |source| SettingsError::Identity {
        namespace: namespace.to_owned(),
        account: account.to_owned(),
        source,
    };
    let id = SpiffeId::of_service_account(domain, namespace, account).map_err(wrong)?;
    let domains = TrustDomains::new(domain, &config.mesh_list("/trustDomainAliases")).map_err(wrong)?;
    Ok((id, domains))
}

// istio: the pod's own address first, then those of its interfaces; a pod without any is known by loopback.
pub(super) fn addresses(inputs: &Inputs) -> Result<Vec<IpAddr>, SettingsError> {
    let env = Environment(&inputs.env);
    let mut addresses = Vec::new();
    let given = inputs.flags.get("ip").into_iter();
    let given = given.chain(env.text("INSTANCE_IP"));
    for text in given.chain(
        env.text("INSTANCE_IPS")
            .into_iter()
            .flat_map(|list| list.split(',')),
    ) {
        let address = text.trim().parse().map_err(|_| SettingsError::Value {
            name: "INSTANCE_IP".to_owned(),
            value: text.to_owned(),
            expected: "an IP address",
        })?;
        addresses.push(address);
    }
    addresses.extend(&inputs.interfaces);
    let mut seen = Vec::new();
    addresses.retain(|address| {
        let new = !seen.contains(address);
        seen.push(*address);
        new
    });
    if addresses.is_empty() {
        addresses.push(IpAddr::from([127, 0, 0, 1]));
    }
    Ok(addresses)
}
