//! The meters of this node, one for each rank that is tapped or measured, and the rhythm of each
//! GPU's counter from one meter to the next.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use pfo_keeper::Gpu;
use pfo_protocol::{GpuName, GpuUuid, MeterStatus, Refusal};
use pfo_service::{lock, now_ns};

use super::counter::CounterReader;
use super::judge::Judge;
use super::meter::Meter;
use super::outbox::Outbox;
use super::refresh::Refresh;
use crate::gpu::LateDriver;
use crate::lease::Session;

/// All meters.
#[derive(Debug)]
pub(crate) struct Meters {
    driver: Arc<LateDriver>,
    by_gpu: Mutex<HashMap<GpuUuid, Arc<Counter>>>,
}

/// The energy counter of a GPU.
#[derive(Debug, Default)]
struct Counter {
    /// The last meter that read it.
    meter: Mutex<Weak<Meter>>,
    refresh: Arc<Mutex<Refresh>>,
    judge: Arc<Mutex<Judge>>,
}

impl Meters {
    /// No meters yet; those of this driver's GPUs.
    pub(crate) fn new(driver: Arc<LateDriver>) -> Self {
        Self { driver, by_gpu: Mutex::default() }
    }

    /// The meter of a rank, started if there is none, with an additional listener.
    ///
    /// # Errors
    /// If the GPU is gone, or a thread cannot be started.
    pub(crate) fn listen(
        &self,
        session: &Arc<Session>,
        gpu: &GpuUuid,
        listener: &Arc<Outbox>,
    ) -> Result<Arc<Meter>, Refusal> {
        let gpu = self.driver.gpu(&GpuName::Uuid(gpu.clone()))?;
        // A GPU that hangs while its meter starts delays no other.
        let counter = self.counter(&gpu.uuid);
        let meter = counter.meter_of(session, |refresh| {
            let reader = CounterReader::new(&gpu, Arc::clone(&counter.judge))?;
            Meter::start(Arc::clone(session), &gpu.uuid, reader, refresh)
        })?;
        meter.add(listener);
        Ok(meter)
    }

    /// A reader of the counter of a session's GPU, which is watched for as long as the reader is kept.
    ///
    /// # Errors
    /// If the GPU is gone, or a thread cannot be started.
    pub(crate) fn watch(
        &self,
        session: &Arc<Session>,
        gpu: &Gpu,
    ) -> Result<Arc<CounterReader>, Refusal> {
        let judge = Arc::clone(&self.counter(&gpu.uuid).judge);
        lock(&judge).begin();
        let reader = Arc::new(CounterReader::new(gpu, judge)?);
        reader.watch(Arc::clone(session), gpu)?;
        Ok(reader)
    }

    /// What is wrong with the counter of a GPU, and whether it is not believed.
    pub(crate) fn remark(&self, gpu: &GpuUuid) -> Option<MeterStatus> {
        let counter = self.counter(gpu);
        let judge = lock(&counter.judge);
        let withheld = judge.doubt().is_some();
        judge.remark(now_ns()).map(|reason| MeterStatus { reason, withheld })
    }

    fn counter(&self, gpu: &GpuUuid) -> Arc<Counter> {
        Arc::clone(lock(&self.by_gpu).entry(gpu.clone()).or_default())
    }
}

impl Counter {
    /// The session's only meter, started by `start` if there is none.
    fn meter_of(
        &self,
        session: &Arc<Session>,
        start: impl FnOnce(Arc<Mutex<Refresh>>) -> Result<Arc<Meter>, Refusal>,
    ) -> Result<Arc<Meter>, Refusal> {
        let mut known = lock(&self.meter);
        if let Some(meter) = known.upgrade().filter(|meter| meter.is_of(session)) {
            return Ok(meter);
        }
        let meter = start(Arc::clone(&self.refresh))?;
        *known = Arc::downgrade(&meter);
        Ok(meter)
    }
}

#[cfg(test)]
mod tests {
    use super::super::meter::example_meter;
    use super::*;
    use crate::job::example_session as session;
    use crate::refusal::internal;

    #[test]
    fn a_session_has_one_meter_until_everybody_has_dropped_it() {
        let (counter, session) = (Counter::default(), session("j", 0));
        let started = |session: &Arc<Session>| {
            let mut started = false;
            let meter = counter.meter_of(session, |_| {
                started = true;
                Ok(example_meter(session))
            });
            (meter.unwrap(), started)
        };
        let (first, is_new) = started(&session);
        assert!(is_new);
        let (second, is_new) = started(&session);
        assert!(!is_new && Arc::ptr_eq(&first, &second));
        drop((first, second));
        assert!(started(&session).1);
    }

    #[test]
    fn the_next_session_on_a_gpu_has_a_meter_of_its_own() {
        let (counter, former) = (Counter::default(), session("j", 0));
        let _listened_to = counter.meter_of(&former, |_| Ok(example_meter(&former))).unwrap();
        let next = session("j", 0);
        let meter = counter.meter_of(&next, |_| Ok(example_meter(&next))).unwrap();
        assert!(meter.is_of(&next));
    }

    #[test]
    fn a_meter_that_does_not_start_leaves_none_behind() {
        let (counter, session) = (Counter::default(), session("j", 0));
        let refusal = counter.meter_of(&session, |_| Err(internal(&"no thread"))).err().unwrap();
        assert_eq!(refusal.message, "no thread");
        assert!(counter.meter_of(&session, |_| Ok(example_meter(&session))).is_ok());
    }
}
