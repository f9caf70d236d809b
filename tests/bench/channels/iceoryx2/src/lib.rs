//! One direction of messages by iceoryx2's publish/subscribe, for a C++ program that measures it.
//!
//! The calls move a burst at a time, so that the price of a call through a pointer is paid once for it. A `Sender` and
//! a `Receiver` belong to one thread each. A failure is told on stderr, and the call returns null or `FAILED`.
use core::ffi::{c_char, c_void, CStr};
use std::error::Error;

use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::port::update_connections::UpdateConnections;
use iceoryx2::prelude::*;
use iceoryx2::sample::Sample;
use iceoryx2::sample_mut_uninit::SampleMutUninit;
use iceoryx2::service::port_factory::{event, publish_subscribe};

const PAYLOAD_BYTES: usize = 2048;
const FAILED: u32 = u32::MAX;

type Payload = [u8; PAYLOAD_BYTES];
type Ipc = ipc::Service;
type Loan = SampleMutUninit<Ipc, core::mem::MaybeUninit<Payload>, ()>;

/// What both ends open: they give the same arguments.
struct Service {
    messages: publish_subscribe::PortFactory<Ipc, Payload, ()>,
    wakes: event::PortFactory<Ipc>,
    _node: Node<Ipc>,
}

impl Service {
    /// `folder`: of the files that describe the service. `capacity`: messages that may be under way. `burst`: messages that an end holds at a time.
    fn open(name: &str, folder: &str, capacity: usize, burst: usize) -> Result<Self, Box<dyn Error>> {
        set_log_level(LogLevel::Error);
        let mut config = Config::global_config().clone();
        // Services of other programs on this machine, and the remains of killed ones, are not looked at.
        config.global.set_root_path(&Path::new(folder.as_bytes())?);
        config.global.prefix = FileName::new(format!("{name}_").as_bytes())?;
        let node = NodeBuilder::new()
            .config(&config)
            .signal_handling_mode(SignalHandlingMode::Disabled)
            .create::<Ipc>()?;
        let messages = node
            .service_builder(&ServiceName::new(name)?)
            .publish_subscribe::<Payload>()
            .payload_alignment(Alignment::new(64).ok_or("64 is no alignment")?)
            .enable_safe_overflow(false)
            .history_size(0)
            .subscriber_max_buffer_size(capacity)
            .subscriber_max_borrowed_samples(burst)
            .max_publishers(1)
            .max_subscribers(1)
            .open_or_create()?;
        let wakes = node
            .service_builder(&ServiceName::new(&format!("{name}_wakes"))?)
            .event()
            .open_or_create()?;
        Ok(Self {
            messages,
            wakes,
            _node: node,
        })
    }
}

pub struct Sender {
    loans: Vec<Loan>,
    publisher: Publisher<Ipc, Payload, ()>,
    notifier: Notifier<Ipc>,
    _service: Service,
}

pub struct Receiver {
    samples: Vec<Sample<Ipc, Payload, ()>>,
    subscriber: Subscriber<Ipc, Payload, ()>,
    listener: Listener<Ipc>,
    _service: Service,
}

impl Sender {
    fn open(name: &str, folder: &str, capacity: usize, burst: usize) -> Result<Self, Box<dyn Error>> {
        let service = Service::open(name, folder, capacity, burst)?;
        Ok(Self {
            loans: Vec::with_capacity(burst),
            publisher: service
                .messages
                .publisher_builder()
                .max_loaned_samples(burst)
                .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
                .create()?,
            notifier: service.wakes.notifier_builder().create()?,
            _service: service,
        })
    }
}

impl Receiver {
    fn open(name: &str, folder: &str, capacity: usize, burst: usize) -> Result<Self, Box<dyn Error>> {
        let service = Service::open(name, folder, capacity, burst)?;
        let subscriber = service.messages.subscriber_builder().create()?;
        // A publisher drops what does not fit into the buffer of a subscriber that has not connected yet.
        while service.messages.dynamic_config().number_of_publishers() == 0 {
            std::thread::yield_now();
        }
        subscriber.update_connections()?;
        Ok(Self {
            samples: Vec::with_capacity(burst),
            subscriber,
            listener: service.wakes.listener_builder().create()?,
            _service: service,
        })
    }
}

fn told<T>(what: &str, result: Result<T, impl core::fmt::Display>) -> Option<T> {
    result
        .inspect_err(|error| eprintln!("channel_bench: iceoryx2: {what}: {error}"))
        .ok()
}

fn boxed<T>(what: &str, result: Result<T, Box<dyn Error>>) -> *mut T {
    told(what, result).map_or(core::ptr::null_mut(), |end| Box::into_raw(Box::new(end)))
}

/// # Safety
/// `name` and `folder` are C strings. The result goes to `channel_sender_close`.
#[no_mangle]
pub unsafe extern "C" fn channel_sender_open(
    name: *const c_char,
    folder: *const c_char,
    capacity: u32,
    burst: u32,
) -> *mut Sender {
    let name = CStr::from_ptr(name).to_string_lossy();
    let folder = CStr::from_ptr(folder).to_string_lossy();
    boxed(
        "a sender",
        Sender::open(&name, &folder, capacity as usize, burst as usize),
    )
}

/// # Safety
/// `sender` comes from `channel_sender_open`, and is not used any more.
#[no_mangle]
pub unsafe extern "C" fn channel_sender_close(sender: *mut Sender) {
    drop(Box::from_raw(sender));
}

/// Stores where the payloads of the next `count` messages are. Returns `count`, or FAILED.
///
/// # Safety
/// `blocks` has room for `count`, which is at most the burst of `channel_sender_open`.
#[no_mangle]
pub unsafe extern "C" fn channel_loan(sender: *mut Sender, blocks: *mut *mut c_void, count: u32) -> u32 {
    let sender = &mut *sender;
    for index in 0..count as usize {
        let Some(mut loan) = told("loan", sender.publisher.loan_uninit()) else {
            return FAILED;
        };
        *blocks.add(index) = loan.payload_mut().as_mut_ptr().cast();
        sender.loans.push(loan);
    }
    count
}

/// Sends the messages of `channel_loan`, in that order; waits while the receiver's buffer is full. Returns how many have
/// got a receiver, or FAILED.
///
/// # Safety
/// `sender` comes from `channel_sender_open`.
#[no_mangle]
pub unsafe extern "C" fn channel_send(sender: *mut Sender) -> u32 {
    let mut delivered = 0;
    for loan in (*sender).loans.drain(..) {
        // The caller may have left the payload as it was: bytes that a former message has left there.
        match told("send", loan.assume_init().send()) {
            Some(receivers) => delivered += receivers as u32,
            None => return FAILED,
        }
    }
    delivered
}

/// Wakes a receiver that sleeps in `channel_wait`. Returns how many were told, or FAILED.
///
/// # Safety
/// `sender` comes from `channel_sender_open`.
#[no_mangle]
pub unsafe extern "C" fn channel_wake(sender: *mut Sender) -> u32 {
    told("notify", (*sender).notifier.notify()).map_or(FAILED, |told| told as u32)
}

/// Waits until the sender is there.
///
/// # Safety
/// `name` and `folder` are C strings. The result goes to `channel_receiver_close`.
#[no_mangle]
pub unsafe extern "C" fn channel_receiver_open(
    name: *const c_char,
    folder: *const c_char,
    capacity: u32,
    burst: u32,
) -> *mut Receiver {
    let name = CStr::from_ptr(name).to_string_lossy();
    let folder = CStr::from_ptr(folder).to_string_lossy();
    boxed(
        "a receiver",
        Receiver::open(&name, &folder, capacity as usize, burst as usize),
    )
}

/// # Safety
/// `receiver` comes from `channel_receiver_open`, and is not used any more.
#[no_mangle]
pub unsafe extern "C" fn channel_receiver_close(receiver: *mut Receiver) {
    drop(Box::from_raw(receiver));
}

/// Stores where the payloads of up to `most` messages are; they stay there until `channel_release`. Returns how many, 0
/// if none is there, or FAILED.
///
/// # Safety
/// `blocks` has room for `most`, which is at most the burst of `channel_receiver_open`.
#[no_mangle]
pub unsafe extern "C" fn channel_receive(receiver: *mut Receiver, blocks: *mut *const c_void, most: u32) -> u32 {
    let receiver = &mut *receiver;
    for index in 0..most {
        match told("receive", receiver.subscriber.receive()) {
            Some(Some(sample)) => {
                *blocks.add(index as usize) = sample.payload().as_ptr().cast();
                receiver.samples.push(sample);
            }
            Some(None) => return index,
            None => return FAILED,
        }
    }
    most
}

/// Gives the payloads of `channel_receive` back.
///
/// # Safety
/// `receiver` comes from `channel_receiver_open`.
#[no_mangle]
pub unsafe extern "C" fn channel_release(receiver: *mut Receiver) {
    (*receiver).samples.clear();
}

/// Sleeps until `channel_wake` was called. Returns 0, or FAILED.
///
/// # Safety
/// `receiver` comes from `channel_receiver_open`.
#[no_mangle]
pub unsafe extern "C" fn channel_wait(receiver: *mut Receiver) -> u32 {
    told("wait", (*receiver).listener.blocking_wait(|_| {})).map_or(FAILED, |_| 0)
}
