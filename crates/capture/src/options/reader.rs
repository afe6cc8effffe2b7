//! Reads each option from wherever it was given, and checks it.

use super::read::{Given, Sources};
use super::settings::{Backend, InitialState, Settings, SettingsError};
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
        let (redirect_dns, capture_all_dns) = (self.switch("redirect-dns")?, self.switch("capture-all-dns")?);
        if capture_all_dns && !redirect_dns {
            self.warnings
                .push("--capture-all-dns has no effect without --redirect-dns".into());
        }
        let dry_run_file = self.sources.variable("DRY_RUN_FILE_PATH").value;
        let backend = self.backend()?;
        let state = self.state()?;
        let host_ipv6 = self.host_ipv6()?;
        // Whoever states what the host is like states all of it.
        let host_dns = match self.sources.get("host-dns") {
            Some(given) => Some(self.list(&given, address)?),
            None => host_ipv6.map(|_| Vec::new()),
        };
        Ok(Settings {
            has_uids: !intent.proxy_uids.is_empty(),
            has_gids: !intent.proxy_gids.is_empty(),
            intent,
            redirect_dns,
            capture_all_dns,
            dry_run: self.switch("dry-run")?,
            dry_run_file: (!dry_run_file.is_empty()).then(|| PathBuf::from(dry_run_file)),
            restore_format: self.switch_or("restore-format", true)?,
            probe_port: self.value("iptables-probe-port", 15002, port)?,
            probe_timeout: self.value("probe-timeout", Duration::from_secs(5), duration)?,
            skip_rule_apply: self.switch("skip-rule-apply")?,
            run_validation: self.switch("run-validation")?,
            cleanup_only: self.switch("cleanup-only")?,
            reconcile: self.switch("reconcile")?,
            force_apply: self.switch("force-apply")?,
            dual_stack: self.switch("dual-stack")?,
            backend,
            network_namespace: self
                .text("network-namespace")
                .map(|given| PathBuf::from(given.value)),
            cni_mode: self.switch("cni-mode")?,
            state,
            host_ipv6,
            host_dns,
            proxy_user: self.sources.variable("ENVOY_USER").value,
            warnings: self.warnings,
        })
    }

    fn intent(&mut self) -> Result<Intent, SettingsError> {
        Ok(Intent {
            outbound_port: self.value("envoy-port", 15001, port)?,
            inbound_port: self.value("inbound-capture-port", 15006, port)?,
            tunnel_port: self.value("inbound-tunnel-port", 15008, port)?,
            proxy_uids: self.values("proxy-uid", Owner::from_str)?,
            proxy_gids: self.values("proxy-gid", Owner::from_str)?,
            mode: self.mode()?,
            inbound: self.inbound()?,
            excluded_interfaces: self.values("istio-exclude-interfaces", Interface::from_str)?,
            virtual_interfaces: self.values("kube-virt-interfaces", Interface::from_str)?,
            destinations: self.destinations()?,
            excluded_destinations: self.excluded_destinations()?,
            outbound_ports: self.values("istio-outbound-ports", Ports::from_str)?,
            excluded_outbound_ports: self.values("istio-local-outbound-ports-exclude", Ports::from_str)?,
            mark: self.value("istio-inbound-tproxy-mark", 1337, |text| {
                number(text, 1, u32::MAX)
            })?,
            route_table: self.route_table()?,
            dns: Dns::Off,
            drop_invalid: self.switch("drop-invalid")?,
            groups: self.groups()?,
            loopback_v4: self.loopback()?,
            ipv6: false,
        })
    }

    /// A value that is there and not empty.
    fn text(&self, option: &'static str) -> Option<Given> {
        self.sources.get(option).filter(|given| !given.value.is_empty())
    }

    fn value<T>(
        &self,
        option: &'static str,
        default: T,
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Result<T, SettingsError> {
        match self.text(option) {
            None => Ok(default),
            Some(given) => parse(&given.value).map_err(|error| SettingsError::Value { given, error }),
        }
    }

    fn switch(&self, option: &'static str) -> Result<bool, SettingsError> {
        self.switch_or(option, false)
    }

    fn switch_or(&self, option: &'static str, default: bool) -> Result<bool, SettingsError> {
        match self.sources.get(option) {
            None => Ok(default),
            Some(given) => boolean(&given.value).map_err(|error| SettingsError::Value { given, error }),
        }
    }

    fn values<T>(
        &mut self,
        option: &'static str,
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Result<Vec<T>, SettingsError> {
        match self.sources.get(option) {
            None => Ok(Vec::new()),
            Some(given) => self.list(&given, parse),
        }
    }

    // istio: empty items are dropped, as `-d 15090,` and `-x ""` in its templates need. Blanks around an
    // item reach iptables-restore there, which skips them; so they are skipped here, with a word about it.
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
    // mode. NONE is kept, because it is a valid value of the annotation that templates pass on.
    fn mode(&mut self) -> Result<Mode, SettingsError> {
        let Some(given) = self.text("istio-inbound-interception-mode") else {
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
        let excluded = self.values("istio-local-exclude-ports", Ports::from_str)?;
        let Some(given) = self.text("istio-inbound-ports") else {
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
        match self.text("istio-service-cidr") {
            Some(given) if given.value == "*" => Ok(Destinations::All),
            Some(given) => Ok(Destinations::Ranges(self.list(&given, Cidr::from_str)?)),
            None => Ok(Destinations::Ranges(Vec::new())),
        }
    }

    fn excluded_destinations(&mut self) -> Result<Vec<Cidr>, SettingsError> {
        match self.text("istio-service-exclude-cidr") {
            Some(given) if given.value.split(',').any(|item| item.trim_matches(' ') == "*") => {
                Err(SettingsError::ExcludeAll { given })
            }
            Some(given) => self.list(&given, Cidr::from_str),
            None => Ok(Vec::new()),
        }
    }

    // The tables from 253 on are the kernel's own: a default route to `lo` in one of them would cut the pod off.
    fn route_table(&self) -> Result<u32, SettingsError> {
        let table = self.value("istio-inbound-tproxy-route-table", 133, |text| {
            number(text, 1, u32::MAX)
        })?;
        match self.text("istio-inbound-tproxy-route-table") {
            Some(given) if (253..=255).contains(&table) => Err(SettingsError::Conflict {
                given,
                problem: "tables 253 to 255 (default, main, local) belong to the kernel",
            }),
            _ => Ok(table),
        }
    }

    fn groups(&mut self) -> Result<Groups, SettingsError> {
        let include = self.sources.variable("ISTIO_OUTBOUND_OWNER_GROUPS");
        let exclude = self.sources.variable("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE");
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
        let given = self.sources.variable("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR");
        let range = match Cidr::from_str(&given.value) {
            Ok(range) => range,
            Err(error) => return Err(SettingsError::Value { given, error }),
        };
        if range.is_ipv4() && range.address.is_loopback() && range.length >= 8 {
            Ok(range)
        } else {
            Err(SettingsError::Loopback { given })
        }
    }

    fn backend(&self) -> Result<Option<Backend>, SettingsError> {
        let native = self.switch("native-nftables")?;
        let forced = match self.text("force-iptables-binary") {
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
        let named = match self.text("backend") {
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
        let Some(given) = self.text("state") else {
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
        let Some(given) = self.text("host-ipv6") else {
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
