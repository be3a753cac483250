#include "messages/messenger.hpp"

#include <utility>

#include "messages/engine.hpp"

namespace torsh {

Messenger::Messenger(MessengerSetup setup) : engine_(std::make_unique<Engine>(std::move(setup))) {}

Messenger::~Messenger() = default;

void Messenger::begin(const Label& label) { engine_->begin(label); }

TransferPtr Messenger::send(int peer, const Label& label, std::span<const std::byte> data) {
  return engine_->send(peer, label, data);
}

TransferPtr Messenger::receive(int peer, const Label& label, std::span<std::byte> room) {
  return engine_->receive(peer, label, room);
}

TransferPtr Messenger::take(int peer, const Label& label) { return engine_->await(peer, label, Transfer::Kind::take); }

TransferPtr Messenger::probe(int peer, const Label& label) { return engine_->await(peer, label, Transfer::Kind::probe); }

TransferPtr Messenger::probe_now(int peer, const Label& label) { return engine_->probe_now(peer, label); }

void Messenger::when_over(const TransferPtr& transfer, std::function<void()> then) {
  engine_->when_over(transfer, std::move(then));
}

void Messenger::wait(std::span<const TransferPtr> transfers, double deadline, double timeout) {
  engine_->wait(transfers, deadline, timeout);
}

bool Messenger::wait_until(std::span<const TransferPtr> transfers, double until) {
  return engine_->wait_until(transfers, until);
}

void Messenger::progress_in_background(std::span<const TransferPtr> transfers, double deadline, double timeout) {
  engine_->progress_in_background(transfers, deadline, timeout);
}

std::vector<int> Messenger::awaited(bool by_name) { return engine_->awaited(by_name); }

std::optional<Label> Messenger::awaits(int peer) { return engine_->awaits(peer); }

void Messenger::alarm() { engine_->alarm(); }

void Messenger::fail(const Failure& failure) { engine_->fail(failure); }

void Messenger::close() { engine_->close(); }

}  // namespace torsh
