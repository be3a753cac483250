// The state of a peer, as known besides its streams.
#pragma once

#include <cstdint>

namespace torsh {

enum class PeerState : std::uint8_t {
  present,      // as far as is known
  left,         // it has closed the group
  lost,         // its end of the connection is gone
  unreachable,  // its machine does not answer: its streams may never end
};

}  // namespace torsh
