//! What is known, as text: in the format of OpenMetrics, or in the older one of Prometheus, which is all
//! that the textfile collector reads.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::known::Known;
use super::series::{self, Kind, Labels, Series, Sink, Subject};

/// A format of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format 0.0.4 of Prometheus.
    Classic,
}

impl Format {
    /// Its media type.
    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Writes what is known.
pub(super) fn write(known: &Arc<Known>, format: Format) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page { known: Arc::clone(known), format }));
    let mut text = String::new();
    // A string takes whatever is written.
    let _ = match format {
        Format::OpenMetrics => encode(&mut text, &registry),
        Format::Classic => encode_registry(&mut text, &registry),
    };
    text
}

#[derive(Debug)]
struct Page {
    known: Arc<Known>,
    format: Format,
}

impl Collector for Page {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        series::all(&self.known, &mut Encoder { encoder, format: self.format })
    }
}

struct Encoder<'a> {
    encoder: DescriptorEncoder<'a>,
    format: Format,
}

impl Sink for Encoder<'_> {
    fn take<T>(&mut self, subject: &Subject<T>, ones: &[T]) -> fmt::Result {
        let labels: Vec<Labels> = ones.iter().map(|one| subject.labels_of(one)).collect();
        for series in &subject.series {
            let value = |one| (series.value)(one).filter(|value: &f64| value.is_finite());
            let values = labels.iter().zip(ones.iter().map(value));
            let known: Vec<_> =
                values.filter_map(|(labels, value)| Some((labels, value?))).collect();
            if !known.is_empty() {
                self.family(series, &known)?;
            }
        }
        Ok(())
    }
}

impl Encoder<'_> {
    fn family<T>(&mut self, series: &Series<T>, values: &[(&Labels, f64)]) -> fmt::Result {
        let Series { name, kind, unit, help, .. } = *series;
        let (base, unit, metric_type, written_as) = match (self.format, kind) {
            (Format::OpenMetrics, _) => {
                let unit_of_name = unit.map(|unit| format!("_{unit}")).unwrap_or_default();
                let added = unit_of_name + kind.suffix();
                let base = name.strip_suffix(&added).unwrap_or(name);
                (base, unit.map(|unit| Unit::Other(unit.into())), kind.metric_type(), kind)
            }
            // As of a gauge, the name of a value is that of its family.
            (Format::Classic, Kind::Counter) => (name, None, MetricType::Counter, Kind::Gauge),
            (Format::Classic, _) => (name, None, MetricType::Gauge, Kind::Gauge),
        };
        let mut family = self.encoder.encode_descriptor(base, help, unit.as_ref(), metric_type)?;
        for (labels, value) in values {
            match written_as {
                _ if labels.is_empty() => return encode_value(written_as, *value, family),
                Kind::Info => family.encode_info(*labels)?,
                Kind::Counter | Kind::Gauge => {
                    encode_value(written_as, *value, family.encode_family(*labels)?)?;
                }
            }
        }
        Ok(())
    }
}

fn encode_value(kind: Kind, value: f64, encoder: MetricEncoder<'_>) -> fmt::Result {
    match kind {
        Kind::Counter => ConstCounter::new(value).encode(encoder),
        Kind::Gauge | Kind::Info => ConstGauge::new(value).encode(encoder),
    }
}
