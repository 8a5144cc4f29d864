//! A job in etcd, or ranges of its keys: all of it at one revision, and every change from the next one
//! on.

use std::collections::VecDeque;

use etcd_client::{
    Client, Event, EventType, GetOptions, KeyValue, ResponseHeader, Txn, TxnOp, TxnOpResponse,
    WatchOptions, WatchStream,
};
use pfo_fleet::{Change, Shared};

use super::at;
use super::keys::Keys;
use super::members::Members;
use crate::error::StoreError;
use crate::verbs::{News, WatchedJob};

/// Bytes of a job at most, for some ten thousand nodes.
const LARGEST_JOB: usize = 64 * 1024 * 1024;

/// A job in etcd that is watched.
#[derive(Debug)]
pub struct EtcdJob {
    keys: Keys,
    stream: WatchStream,
    news: VecDeque<News>,
}

impl EtcdJob {
    /// What is below these keys.
    pub(super) async fn watch(
        members: &Members,
        keys: Keys,
        ranges: &[String],
    ) -> Result<Self, StoreError> {
        let all = GetOptions::new().with_prefix();
        let gets = ranges.iter().map(|range| TxnOp::get(range.as_str(), Some(all.clone())));
        let read = Txn::new().and_then(gets.collect::<Vec<_>>());
        let get = |client: &Client| {
            let mut kv = client.kv_client().max_decoding_message_size(LARGEST_JOB);
            let read = read.clone();
            async move { kv.txn(read).await }
        };
        let found = members.ask(get).await.map_err(at(&keys.prefix()))?;
        let after = found.header().map_or(0, ResponseHeader::revision).saturating_add(1);
        let read = |response: TxnOpResponse| match response {
            TxnOpResponse::Get(mut found) => found.take_kvs(),
            _ => Vec::new(),
        };
        let mut changes: Vec<_> = found
            .op_responses()
            .into_iter()
            .flat_map(read)
            .filter_map(|kv| keys.change(kv.key(), Some(kv.value())))
            .collect();
        // What is said of a swap counts only once there is the swap.
        changes.sort_by_key(|change| !matches!(change, Change::Proposal(..)));
        let mut shared = Shared::default();
        changes.into_iter().for_each(|change| shared.apply(change));
        let options = WatchOptions::new().with_prefix().with_start_revision(after);
        let watch = |client: &Client| {
            let (mut watches, options) = (client.watch_client(), options.clone());
            async move {
                let first = ranges.first().map_or("", String::as_str);
                let mut stream = watches.watch(first, Some(options.clone())).await?;
                for range in ranges.iter().skip(1) {
                    stream.watch(range.as_str(), Some(options.clone())).await?;
                }
                Ok(stream)
            }
        };
        let stream = members.ask(watch).await?;
        Ok(Self { keys, stream, news: [News::Snapshot(shared)].into() })
    }
}

/// What is at a key, with its revision, as soon as that is another one than this: 0 for nothing.
pub(super) async fn until_other(
    members: &Members,
    key: &str,
    other_than: u64,
) -> Result<(u64, Vec<u8>), StoreError> {
    let with_revision = |kv: &KeyValue| (kv.mod_revision().unsigned_abs(), kv.value().to_vec());
    let get = |client: &Client| {
        let mut kv = client.kv_client();
        async move { kv.get(key, None).await }
    };
    let found = members.ask(get).await.map_err(at(key))?;
    let now = found.kvs().first().map(with_revision);
    if let Some(now) = now.filter(|(revision, _)| *revision != other_than) {
        return Ok(now);
    }
    let after = found.header().map_or(0, ResponseHeader::revision).saturating_add(1);
    let options = WatchOptions::new().with_start_revision(after);
    let watch = |client: &Client| {
        let (mut watches, options) = (client.watch_client(), options.clone());
        async move { watches.watch(key, Some(options)).await }
    };
    let mut stream = members.ask(watch).await?;
    loop {
        let message = stream.message().await?.ok_or_else(ended)?;
        if message.canceled() {
            return Err(StoreError::Away(message.cancel_reason().to_owned()));
        }
        let written = message.events().iter().rev();
        let put = |event: &&Event| event.event_type() == EventType::Put;
        if let Some(kv) = written.filter(put).find_map(Event::kv) {
            return Ok(with_revision(kv));
        }
    }
}

fn ended() -> StoreError {
    StoreError::Away("the watch ended".into())
}

impl WatchedJob for EtcdJob {
    async fn next(&mut self) -> Result<News, StoreError> {
        loop {
            if let Some(news) = self.news.pop_front() {
                return Ok(news);
            }
            let message = self.stream.message().await?.ok_or_else(ended)?;
            if message.canceled() {
                return Err(StoreError::Away(message.cancel_reason().to_owned()));
            }
            for event in message.events() {
                let Some(kv) = event.kv() else { continue };
                let value = (event.event_type() == EventType::Put).then(|| kv.value());
                let change = self.keys.change(kv.key(), value);
                self.news.extend(change.map(News::Changed));
            }
        }
    }
}
