//! Reads each option from its source and validates it.

use super::read::{Given, Sources};
use super::settings::{Backend, InitialState, Settings, SettingsError};
use super::table::Name;
use crate::intent::{Destinations, Dns, Groups, Inbound, Intent, Mode};
use crate::value::{Cidr, Interface, Owner, Ports, ValueError, address, boolean, duration, number, port};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

pub(super) struct Reader<'a> {
    pub(super) sources: Sources<'a>,
    pub(super) warnings: Vec<String>,
}

impl Reader<'_> {
    pub(super) fn settings(mut self) -> Result<Settings, SettingsError> {
        let intent = self.intent()?;
        let (redirect_dns, capture_all_dns) =
            (self.switch(Name::RedirectDns)?, self.switch(Name::CaptureAllDns)?);
        if capture_all_dns && !redirect_dns {
            self.warnings
                .push("--capture-all-dns has no effect without --redirect-dns".into());
        }
        let dry_run_file = self.sources.variable(Name::DryRunFilePath).value;
        let backend = self.backend()?;
        let state = self.state()?;
        let host_ipv6 = self.host_ipv6()?;
        // The options either state all facts about the host or none.
        let host_dns = match self.sources.get(Name::HostDns) {
            Some(given) => Some(self.list(&given, address)?),
            None => host_ipv6.map(|_| Vec::new()),
        };
        Ok(Settings {
            has_uids: !intent.proxy_uids.is_empty(),
            has_gids: !intent.proxy_gids.is_empty(),
            intent,
            redirect_dns,
            capture_all_dns,
            dry_run: self.switch(Name::DryRun)?,
            dry_run_file: (!dry_run_file.is_empty()).then(|| PathBuf::from(dry_run_file)),
            restore_format: self.switch_or(Name::RestoreFormat, true)?,
            probe_port: self.value(Name::IptablesProbePort, 15002, port)?,
            probe_timeout: self.value(Name::ProbeTimeout, Duration::from_secs(5), duration)?,
            skip_rule_apply: self.switch(Name::SkipRuleApply)?,
            run_validation: self.switch(Name::RunValidation)?,
            cleanup_only: self.switch(Name::CleanupOnly)?,
            reconcile: self.switch(Name::Reconcile)?,
            force_apply: self.switch(Name::ForceApply)?,
            dual_stack: self.switch(Name::DualStack)?,
            backend,
            network_namespace: self
                .text(Name::NetworkNamespace)
                .map(|given| PathBuf::from(given.value)),
            cni_mode: self.switch(Name::CniMode)?,
            state,
            host_ipv6,
            host_dns,
            proxy_user: self.sources.variable(Name::EnvoyUser).value,
            warnings: self.warnings,
        })
    }

    fn intent(&mut self) -> Result<Intent, SettingsError> {
        Ok(Intent {
            outbound_port: self.value(Name::EnvoyPort, 15001, port)?,
            inbound_port: self.value(Name::InboundCapturePort, 15006, port)?,
            tunnel_port: self.value(Name::InboundTunnelPort, 15008, port)?,
            proxy_uids: self.values(Name::ProxyUid, Owner::from_str)?,
            proxy_gids: self.values(Name::ProxyGid, Owner::from_str)?,
            mode: self.mode()?,
            inbound: self.inbound()?,
            excluded_interfaces: self.values(Name::IstioExcludeInterfaces, Interface::from_str)?,
            virtual_interfaces: self.values(Name::KubeVirtInterfaces, Interface::from_str)?,
            destinations: self.destinations()?,
            excluded_destinations: self.excluded_destinations()?,
            outbound_ports: self.values(Name::IstioOutboundPorts, Ports::from_str)?,
            excluded_outbound_ports: self.values(Name::IstioLocalOutboundPortsExclude, Ports::from_str)?,
            mark: self.value(Name::IstioInboundTproxyMark, 1337, |text| {
                number(text, 1, u32::MAX)
            })?,
            route_table: self.route_table()?,
            dns: Dns::Off,
            drop_invalid: self.switch(Name::DropInvalid)?,
            groups: self.groups()?,
            loopback_v4: self.loopback()?,
            ipv6: false,
        })
    }

    /// A value that is set and not empty.
    fn text(&self, option: Name) -> Option<Given> {
        self.sources.get(option).filter(|given| !given.value.is_empty())
    }

    fn value<T>(
        &self,
        option: Name,
        default: T,
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Result<T, SettingsError> {
        match self.text(option) {
            None => Ok(default),
            Some(given) => parse(&given.value).map_err(|error| SettingsError::Value { given, error }),
        }
    }

    fn switch(&self, option: Name) -> Result<bool, SettingsError> {
        self.switch_or(option, false)
    }

    fn switch_or(&self, option: Name, default: bool) -> Result<bool, SettingsError> {
        match self.sources.get(option) {
            None => Ok(default),
            Some(given) => boolean(&given.value).map_err(|error| SettingsError::Value { given, error }),
        }
    }

    fn values<T>(
        &mut self,
        option: Name,
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Result<Vec<T>, SettingsError> {
        match self.sources.get(option) {
            None => Ok(Vec::new()),
            Some(given) => self.list(&given, parse),
        }
    }

    // istio: empty items are dropped, as `-d 15090,` and `-x ""` in its templates need. Blanks around an
    // item reach iptables-restore there, which skips them; so they are skipped here, with a warning.
    fn list<T>(
        &mut self,
        given: &Given,
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Result<Vec<T>, SettingsError> {
        let mut values = Vec::new();
        for item in given.value.split(',') {
            let trimmed = item.trim_matches(' ');
            if trimmed.len() != item.len() {
                self.warnings
                    .push(format!("{given}: blanks around {trimmed:?} are ignored"));
            }
            if !trimmed.is_empty() {
                let bad = |error| SettingsError::Value {
                    given: given.clone(),
                    error,
                };
                values.push(parse(trimmed).map_err(bad)?);
            }
        }
        Ok(values)
    }

    // differs from istio: any other word means REDIRECT there, so that a typing error silently changes the
    // mode. NONE is accepted, because it is a valid value of the annotation that templates pass on.
    fn mode(&mut self) -> Result<Mode, SettingsError> {
        let Some(given) = self.text(Name::IstioInboundInterceptionMode) else {
            return Ok(Mode::Redirect);
        };
        match given.value.as_str() {
            "REDIRECT" => Ok(Mode::Redirect),
            "TPROXY" => Ok(Mode::Tproxy),
            "NONE" => {
                self.warnings.push(format!(
                    "{given}: NONE means REDIRECT to this command, as in Istio"
                ));
                Ok(Mode::Redirect)
            }
            _ => Err(SettingsError::Choice {
                given,
                allowed: "REDIRECT, TPROXY",
            }),
        }
    }

    fn inbound(&mut self) -> Result<Inbound, SettingsError> {
        let excluded = self.values(Name::IstioLocalExcludePorts, Ports::from_str)?;
        let Some(given) = self.text(Name::IstioInboundPorts) else {
            return Ok(Inbound::Nothing);
        };
        if given.value == "*" {
            return Ok(Inbound::AllExcept(excluded));
        }
        let included = self.list(&given, Ports::from_str)?;
        // istio: a list of nothing but commas still counts as "capture", of no port.
        Ok(Inbound::Only(included))
    }

    fn destinations(&mut self) -> Result<Destinations, SettingsError> {
        match self.text(Name::IstioServiceCidr) {
            Some(given) if given.value == "*" => Ok(Destinations::All),
            Some(given) => Ok(Destinations::Ranges(self.list(&given, cidr)?)),
            None => Ok(Destinations::Ranges(Vec::new())),
        }
    }

    fn excluded_destinations(&mut self) -> Result<Vec<Cidr>, SettingsError> {
        match self.text(Name::IstioServiceExcludeCidr) {
            Some(given) if given.value.split(',').any(|item| item.trim_matches(' ') == "*") => {
                Err(SettingsError::ExcludeAll { given })
            }
            Some(given) => self.list(&given, cidr),
            None => Ok(Vec::new()),
        }
    }

    // The tables from 253 on are the kernel's own: a default route to `lo` in one of them would cut the pod off.
    fn route_table(&self) -> Result<u32, SettingsError> {
        let table = self.value(Name::IstioInboundTproxyRouteTable, 133, |text| {
            number(text, 1, u32::MAX)
        })?;
        match self.text(Name::IstioInboundTproxyRouteTable) {
            Some(given) if (253..=255).contains(&table) => Err(SettingsError::Conflict {
                given,
                problem: "tables 253 to 255 (default, main, local) belong to the kernel",
            }),
            _ => Ok(table),
        }
    }

    fn groups(&mut self) -> Result<Groups, SettingsError> {
        let include = self.sources.variable(Name::OwnerGroups);
        let exclude = self.sources.variable(Name::OwnerGroupsExclude);
        let excluded = self.list(&exclude, Owner::from_str)?;
        if include.value == "*" {
            return Ok(Groups::AllExcept(excluded));
        }
        if !excluded.is_empty() {
            self.warnings.push(format!(
                "{exclude} has no effect: only groups of {include} are captured"
            ));
        }
        let included = self.list(&include, Owner::from_str)?;
        if included.len() > 64 {
            return Err(SettingsError::TooManyGroups {
                given: include,
                count: included.len(),
            });
        }
        Ok(Groups::Only(included))
    }

    fn loopback(&self) -> Result<Cidr, SettingsError> {
        let given = self.sources.variable(Name::LoopbackCidr);
        let range = match cidr(&given.value) {
            Ok(range) => range,
            Err(error) => return Err(SettingsError::Value { given, error }),
        };
        if range.is_ipv4() && range.address().is_loopback() && range.prefix() >= 8 {
            Ok(range)
        } else {
            Err(SettingsError::Loopback { given })
        }
    }

    fn backend(&self) -> Result<Option<Backend>, SettingsError> {
        let native = self.switch(Name::NativeNftables)?;
        let forced = match self.text(Name::ForceIptablesBinary) {
            None => None,
            Some(given) => match given.value.as_str() {
                "legacy" => Some((Backend::IptablesLegacy, given)),
                "nft" => Some((Backend::IptablesNft, given)),
                _ => {
                    return Err(SettingsError::Choice {
                        given,
                        allowed: "legacy, nft",
                    });
                }
            },
        };
        let named = match self.text(Name::Backend) {
            None => None,
            Some(given) => match given.value.as_str() {
                "nftables" => Some((Backend::Nftables, given)),
                "iptables" => Some((Backend::Iptables, given)),
                _ => {
                    return Err(SettingsError::Choice {
                        given,
                        allowed: "nftables, iptables",
                    });
                }
            },
        };
        match (native, named, forced) {
            (true, Some((Backend::Iptables, given)), _) => Err(SettingsError::Conflict {
                given,
                problem: "contradicts --native-nftables",
            }),
            (_, Some((Backend::Nftables, given)), Some(_)) => Err(SettingsError::Conflict {
                given,
                problem: "contradicts --force-iptables-binary",
            }),
            // istio: --native-nftables wins, and the forced binary has no effect.
            (true, ..) | (_, Some((Backend::Nftables, _)), None) => Ok(Some(Backend::Nftables)),
            (false, _, Some((forced, _))) => Ok(Some(forced)),
            (false, Some((named, _)), None) => Ok(Some(named)),
            (false, None, None) => Ok(None),
        }
    }

    fn state(&self) -> Result<InitialState, SettingsError> {
        let Some(given) = self.text(Name::State) else {
            return Ok(InitialState::Keep);
        };
        let Ok(state) = given.value.parse::<crate::switch::State>() else {
            return Err(SettingsError::Choice {
                given,
                allowed: "open, hold, closed, on",
            });
        };
        Ok(InitialState::Set(state))
    }

    fn host_ipv6(&self) -> Result<Option<bool>, SettingsError> {
        let Some(given) = self.text(Name::HostIpv6) else {
            return Ok(None);
        };
        match given.value.as_str() {
            "yes" => Ok(Some(true)),
            "no" => Ok(Some(false)),
            _ => Err(SettingsError::Choice {
                given,
                allowed: "yes, no",
            }),
        }
    }
}

fn cidr(text: &str) -> Result<Cidr, ValueError> {
    Ok(Cidr::from_str(text)?)
}
