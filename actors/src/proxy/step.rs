//! The one thing that a Proxy starts next: a step of the plan, carried out.
//!
//! What is asked of others ends as one message to the Proxy's actor, also when nobody could take it.

use std::time::Duration;

use super::{Proxy, ProxyMsg};
use crate::domain::clock::Now;
use crate::domain::desired::{CloudInit, Flavor};
use crate::domain::error::OpError;
use crate::domain::id::{HostName, ProviderName};
use crate::domain::instance::{InstanceSpec, OwnerMark};
use crate::domain::plan::{SecretsRead, Step};
use crate::domain::reason::Reason;
use crate::host::{Call, CallKind, HostHandle, Job, OpOutcome};
use crate::kit::work::{Done, work};
use crate::kit::{Ctx, Reply};
use crate::ports::Severity;

/// Secrets come from a cache or one API call.
const READ_WITHIN: Duration = Duration::from_secs(15);

impl Proxy {
    pub(super) fn take(&mut self, step: Step, now: Now, ctx: &mut Ctx<ProxyMsg>) {
        let (key, uid) = (self.desired.key.clone(), self.desired.uid.clone());
        match step {
            Step::Nothing | Step::Done => {}
            Step::ReserveHost => self.reserve(ctx),
            Step::RecordFinalizer { host } => {
                let tell = ctx.tell(ProxyMsg::Adopted);
                self.wires.records.adopt(&key, &uid, Some(host), move |written| tell.send(written));
            }
            Step::ReadSecrets => self.read_secrets(now, ctx),
            Step::Get { host } => self.submit(&host, Call::Get, self.wires.deadlines.get, now, ctx),
            Step::Delete { host, why } => {
                tracing::info!(proxy = %key, %host, reason = %why, "deleting the instance");
                self.submit(&host, Call::Delete, self.wires.deadlines.delete, now, ctx);
            }
            Step::Create { host } => {
                let Flavor::Managed(managed) = &self.desired.flavor else { return };
                tracing::info!(proxy = %key, provider = %managed.provider, %host, "creating the instance");
                let spec = InstanceSpec {
                    mark: self.mark(&managed.provider),
                    placement: managed.placement.clone(),
                    user_data: self.seen.user_data(&self.desired),
                    port: managed.port,
                    credentials: self.seen.credentials().cloned(),
                };
                self.submit(&host, |_| Call::Create(Box::new(spec)), self.wires.deadlines.create, now, ctx);
            }
            Step::EmitGivenUp { reason, note } => {
                let tell = ctx.tell(ProxyMsg::GivenUp);
                let event = self.event(Severity::Warning, reason, note);
                self.wires.events.emit_acked(event, move |acked| tell.send(acked));
            }
            Step::ReleaseFinalizer => {
                let tell = ctx.tell(ProxyMsg::Released);
                self.wires.records.release(&key, &uid, move |written| tell.send(written));
            }
        }
    }

    fn reserve(&self, ctx: &Ctx<ProxyMsg>) {
        let tell = ctx.tell(ProxyMsg::Reserved);
        let Flavor::Managed(managed) = &self.desired.flavor else { return };
        match &self.card {
            Some(card) => card.provider.reserve(&self.desired.uid, &managed.placement, tell),
            None => tell.send(Err(not_configured(&managed.provider))),
        }
    }

    fn read_secrets(&self, now: Now, ctx: &mut Ctx<ProxyMsg>) {
        let (secrets, desired) = (self.wires.secrets.clone(), self.desired.clone());
        let read = async move {
            let namespace = desired.key.namespace();
            let mut read = SecretsRead::default();
            if let Some(secret) = desired.credentials() {
                read.credentials = Some(secrets.credentials(namespace, secret).await?);
            }
            if let Flavor::Managed(managed) = &desired.flavor
                && let Some(cloud_init @ CloudInit::Secret { .. }) = &managed.cloud_init
            {
                read.user_data = Some(secrets.user_data(namespace, cloud_init).await);
            }
            Ok(Box::new(read))
        };
        let tell = ctx.tell(ProxyMsg::SecretsRead);
        let answer = move |done| {
            tell.send(match done {
                Done::Finished(read) => read,
                Done::Deadline => Err(OpError::transient(Reason::Timeout, "the Secrets were not read in time")),
                Done::Panicked(what) => Err(OpError::transient(Reason::Internal, what)),
                Done::Lost => Err(OpError::transient(Reason::Lost, "reading the Secrets was cut short")),
            });
        };
        ctx.start(work("op/secrets", now.mono + READ_WITHIN, read, Reply::new(answer, || Done::Lost)));
    }

    fn submit(
        &mut self,
        host: &HostName,
        call: impl FnOnce(OwnerMark) -> Call,
        within: Duration,
        now: Now,
        ctx: &Ctx<ProxyMsg>,
    ) {
        let Flavor::Managed(managed) = &self.desired.flavor else { return };
        let call = call(self.mark(&managed.provider));
        let kind = call.kind();
        let tell = ctx.tell(|outcome| ProxyMsg::Outcome(Box::new(outcome)));
        let lost = match kind {
            CallKind::Get => OpOutcome::lost_get as fn() -> OpOutcome,
            CallKind::Create => OpOutcome::lost_create,
            CallKind::Delete => OpOutcome::lost_delete,
        };
        let reply = Reply::new(move |outcome| tell.send(outcome), lost);
        match self.handle_of(host) {
            Some(handle) => {
                handle.submit(Job { call, deadline: now.mono + within, epoch: self.epoch, reply });
                self.out.working_on = Some(Box::new(handle));
            }
            None => reply.send(OpOutcome { kind, result: Err(not_configured(&managed.provider)) }),
        }
    }

    pub(super) fn handle_of(&self, host: &HostName) -> Option<HostHandle> {
        self.card.as_ref()?.hosts.get(host).cloned()
    }

    fn mark(&self, provider: &ProviderName) -> OwnerMark {
        OwnerMark {
            operator: self.wires.operator.clone(),
            entry: provider.clone(),
            key: self.desired.key.clone(),
            uid: self.desired.uid.clone(),
        }
    }
}

fn not_configured(provider: &ProviderName) -> OpError {
    OpError::permanent(
        Reason::ProviderNotConfigured,
        format!(
            "provider `{provider}` is not in the providers config; add it there, or make the Proxy anew with another"
        ),
    )
}
